"""The documents' problem sets: exercises with a starter, an answer and a grader that says what is wrong."""

from vantage.studies.exercises.exercise import Check, Exercise, Grade
from vantage.studies.exercises.grading import grade, grade_many
from vantage.studies.exercises.registry import exercises
from vantage.studies.exercises.tasks.a09_heat_maps import heat_maps_png, puzzle

__all__ = ["Check", "Exercise", "Grade", "exercises", "grade", "grade_many", "heat_maps_png", "puzzle"]
