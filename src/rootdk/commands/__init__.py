"""The commands of `rootdk`: a file per command, which holds a click command of the file's name. `cli` finds it by that.

A dash in a command's name is an underscore in the file's. A file here says which options a command has and what is
wrong with them. It imports what the command needs inside the function, so that `rootdk info` pays for nothing else;
what is printed comes from `rootdk.terminal`.
"""

# In which order does not matter: `rootdk --help` sorts them.
NAMES = (
    "audit",
    "claims",
    "explore",
    "info",
    "look",
    "plan",
    "predict",
    "prove",
    "train-study",
)
