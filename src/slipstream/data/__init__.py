"""Parts that techniques put into the input path: workers that stay, copies that start early. Decide nothing about
whether they are worth it."""
