"""The command line: one file for each command, and all parsing and printing.

main       looks up the command, then imports its file
ending     turns errors into a sentence and an exit code
parsing    the form of every command: its options and its help
terminal   tables and lines for the terminal
"""
