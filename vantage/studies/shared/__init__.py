"""What several studies need: findings and verdicts, attention on its own, models, and training runs inside a study."""
