"""An agent that learns to land on a pad: it plays many copies of a made game, and learns from what it played."""

import argparse

import numpy as np
import torch
from torch import nn

NUM_GAMES, HORIZON, NUM_ACTIONS = 32, 48, 4
DISCOUNT, TRACE = 0.98, 0.95


class LandingGame:
    """A craft falls towards a pad that drifts sideways. Actions: nothing, thrust up, left, right."""

    THRUST = np.array([[0.0, 0.0], [0.0, 0.09], [-0.05, 0.02], [0.05, 0.02]])

    def __init__(self, number, seed):
        self.draw = np.random.default_rng(seed)
        self.position, self.speed = np.zeros((number, 2)), np.zeros((number, 2))
        self.pad, self.fuel = np.zeros(number), np.zeros(number)
        self.restart(np.ones(number, dtype=bool))

    def restart(self, which):
        number = int(which.sum())
        self.position[which] = np.stack([self.draw.uniform(-1, 1, number), self.draw.uniform(1, 2, number)], axis=1)
        self.speed[which] = self.draw.normal(0, 0.02, (number, 2))
        self.pad[which] = self.draw.uniform(-1, 1, number)
        self.fuel[which] = 1.0

    def observe(self):
        offset = self.position[:, 0] - self.pad
        parts = [offset, self.position[:, 1], self.speed[:, 0] * 10, self.speed[:, 1] * 10, self.fuel]
        return np.stack(parts, axis=1).astype(np.float32)

    def step(self, actions):
        thrust = self.THRUST[actions] * (self.fuel > 0)[:, None]
        self.fuel = np.maximum(0.0, self.fuel - 0.01 * (actions > 0))
        self.speed += thrust - np.array([0.0, 0.04])
        self.speed *= 0.98
        self.position += self.speed
        self.pad += self.draw.normal(0, 0.01, len(self.pad))
        offset = np.abs(self.position[:, 0] - self.pad)
        has_landed = self.position[:, 1] <= 0
        is_lost = (np.abs(self.position[:, 0]) > 2) | (self.position[:, 1] > 3)
        reward = -0.02 * offset - 0.01 * (actions > 0)
        reward += has_landed * (1.0 - offset - 5 * np.abs(self.speed[:, 1]))
        reward -= 1.0 * is_lost
        is_over = has_landed | is_lost
        self.restart(is_over)
        return reward.astype(np.float32), is_over


class Agent(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, NUM_ACTIONS), nn.Linear(width, 1)

    def forward(self, observations):
        features = self.body(observations)
        return self.actor(features), self.critic(features).squeeze(-1)


def play(agent, game):
    """Plays all games for a while. Returns what was seen, done and earned, with the values of the critic."""
    seen, done, earned, over, values = [], [], [], [], []
    for _ in range(HORIZON):
        observation = torch.from_numpy(game.observe())
        with torch.no_grad():
            logits, value = agent(observation)
            action = torch.distributions.Categorical(logits=logits).sample()
        reward, is_over = game.step(action.numpy())
        seen.append(observation)
        done.append(action)
        values.append(value)
        earned.append(torch.from_numpy(reward))
        over.append(torch.from_numpy(is_over))
    with torch.no_grad():
        _, last = agent(torch.from_numpy(game.observe()))
    return torch.stack(seen), torch.stack(done), torch.stack(earned), torch.stack(over), torch.stack([*values, last])


def advantages(earned, over, values):
    result, trace = torch.zeros_like(earned), torch.zeros(NUM_GAMES)
    for t in range(HORIZON - 1, -1, -1):
        goes_on = (~over[t]).float()
        surprise = earned[t] + DISCOUNT * values[t + 1] * goes_on - values[t]
        trace = surprise + DISCOUNT * TRACE * goes_on * trace
        result[t] = trace
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20000)
    args = parser.parse_args()
    torch.manual_seed(0)
    game, agent = LandingGame(NUM_GAMES, seed=0), Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=7e-4)
    for step in range(args.steps):
        seen, done, earned, over, values = play(agent, game)
        gains = advantages(earned, over, values)
        targets = (gains + values[:-1]).flatten()
        gains = ((gains - gains.mean()) / (gains.std() + 1e-6)).flatten()
        logits, value = agent(seen.flatten(0, 1))
        policy = torch.distributions.Categorical(logits=logits)
        policy_loss = -(policy.log_prob(done.flatten()) * gains).mean()
        loss = policy_loss + 0.5 * (value - targets).square().mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step}: reward {earned.sum().item() / NUM_GAMES:.3f}, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
