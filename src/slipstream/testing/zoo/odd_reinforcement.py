"""Odd: a policy learns from an environment; there is no loader, and most calls of the model are single."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--save")
args = parser.parse_args()


class Corridor:
    """Walk right to the end; a reward waits there."""

    def reset(self):
        self.place, self.time = 0, 0
        return self.observe()

    def observe(self):
        return torch.tensor([self.place / 5, self.time / 20, 1.0])

    def step(self, action):
        self.place = max(0, self.place + (1 if action else -1))
        self.time += 1
        done = self.place == 5 or self.time == 20
        return self.observe(), float(self.place == 5), done


torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
world = Corridor()

for episode in range(args.steps):
    observation, done = world.reset(), False
    logs, rewards = [], []
    while not done:
        choice = torch.distributions.Categorical(logits=policy(observation))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        observation, reward, done = world.step(action.item())
        rewards.append(reward)
    loss = -sum(logs) * (sum(rewards) - 0.5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if episode % 10 == 0:
        print("episode", episode, "reward", sum(rewards), "length", len(rewards))

if args.save:
    torch.save(policy.state_dict(), args.save)
