"""Odd: a policy collects experience without gradients, and then learns from it in several updates; no loader."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=80)
parser.add_argument("--save")
args = parser.parse_args()

ROLLOUT, ACTORS, UPDATES = 48, 4, 8


class Pendulums:
    """A few pendulums in plain Python. The reward is for hanging still."""

    def reset(self):
        self.states = [(0.1 * number, 0.0) for number in range(1, ACTORS + 1)]
        return torch.tensor(self.states)

    def swing(self, pushes):
        moved = []
        for (angle, speed), push in zip(self.states, pushes):
            for _ in range(300):  # small steps of time
                speed += 0.001 * (push - angle - 0.1 * speed)
                angle += 0.001 * speed
            moved.append((angle, speed))
        self.states = moved
        return torch.tensor(moved), torch.tensor([-angle * angle for angle, _ in moved])


torch.manual_seed(0)
torch.set_num_threads(1)  # two threads for so little wait for each other longer than they compute
actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=0.003)
world = Pendulums()
state = world.reset()

for step in range(args.steps):
    if step % UPDATES == 0:
        states, pushes, rewards = [], [], []
        for _ in range(ROLLOUT):
            with torch.no_grad():
                push = actor(state).squeeze(1) + 0.3 * torch.randn(ACTORS)
            states.append(state)
            pushes.append(push)
            state, reward = world.swing(push.tolist())
            rewards.append(reward)
        states, pushes, rewards = torch.cat(states), torch.cat(pushes), torch.cat(rewards)
    chosen = torch.randint(0, len(states), (128,))
    values = critic(states[chosen]).squeeze(1)
    advantages = rewards[chosen] - values
    surprise = (pushes[chosen] - actor(states[chosen]).squeeze(1)) ** 2
    loss = (advantages.detach() * surprise).mean() + (advantages**2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print("update", step, "reward", rewards.mean().item())

if args.save:
    torch.save([actor.state_dict(), critic.state_dict()], args.save)
