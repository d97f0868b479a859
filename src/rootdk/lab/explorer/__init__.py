"""The explorer: a local page where a person moves a knob and sees why the scale is 1/sqrt(d_k).

chapter       what a chapter, a knob, a figure and a number are: records, and the whole interface to the page
chapters/     one file per step of the argument; `shared` is what several of them use
values        what the page sends, and an audit of the reader's own model, checked and bounded
endpoints     what is refused and what is served, by `server`
export        the page as one file, with views that were computed before

Every number comes from the operator and the theory of this package. The page draws what it is given
and computes nothing.
"""
