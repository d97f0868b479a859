"""What torch users get beside the operator itself: differentiable operators, modules, and the routing of models."""
