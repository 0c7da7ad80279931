"""What runs inside the process that holds a student's code. Nothing here imports the rest of the library."""
