"""The explorer: a local page where a person moves a knob and sees why the scale is 1/sqrt(d_k).

chapter       what a chapter, a knob, a figure and a number are: records, and the whole contract with the page
chapters/     one file per step of the argument; `shared` is what several of them use
values        what the page sends, checked and bounded
audit_input   the same for an audit of the reader's own model
endpoints     what is served, behind `security`, by `server`
export        the page as one file, with views that were computed before

Every number comes from the operator and the theory of this package. The page draws what it is given
and computes nothing.
"""
