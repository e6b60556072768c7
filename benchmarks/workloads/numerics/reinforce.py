"""REINFORCE on a pole that is balanced by hand-written physics; the episodes depend on the policy."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(543)


class Pole:
    def reset(self):
        self.state = (torch.rand(4) * 0.1 - 0.05).tolist()
        return torch.tensor(self.state)

    def step(self, action):
        x, v, angle, spin = self.state
        force = 10.0 if action else -10.0
        push = (force + 0.05 * spin**2 * math.sin(angle)) / 1.1
        turn = (9.8 * math.sin(angle) - math.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        pull = push - 0.05 * turn * math.cos(angle) / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn]
        is_over = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
        return torch.tensor(self.state), 1.0, is_over


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 128)
        self.dropout = nn.Dropout(p=0.6)
        self.affine2 = nn.Linear(128, 2)

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.dropout(self.affine1(x)))), dim=1)


env, policy = Pole(), Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(300):
    state, rewards, log_probs = env.reset(), [], []
    for _ in range(100):
        chances = Categorical(policy(state.unsqueeze(0)))
        action = chances.sample()
        log_probs.append(chances.log_prob(action))
        state, reward, is_over = env.step(action.item())
        rewards.append(reward)
        if is_over:
            break
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.99 * total
        returns.insert(0, total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-7)
    optimizer.zero_grad()
    loss = torch.cat([-log_prob * value for log_prob, value in zip(log_probs, returns)]).sum()
    loss.backward()
    optimizer.step()
    if episode % 10 == 0:
        print(f"Episode {episode}\tLast reward: {sum(rewards):.2f}")
