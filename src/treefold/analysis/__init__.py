"""Analysis of trained models.

- evaluation: scores on a data set, over the whole split and by the shape of the trees
- prediction: answers for records of trees
- explaining: what the model believes of every subtree, and which subtrees matter most for its answer; `Explanation`
- description: the parts of a model, their parameters and costs
- baselines: the accuracy of simple models that count labels
"""
