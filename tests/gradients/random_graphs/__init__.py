"""Random small graphs, examined for terms that see more than one example.

python -m tests.gradients.random_graphs --graphs 20000 --seed 1
"""
