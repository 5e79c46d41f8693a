"""What is trained, and how: models, tasks, pipelines, federated learning."""
