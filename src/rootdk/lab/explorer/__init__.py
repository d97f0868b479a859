"""The explorer: a local page where a person moves a knob and sees why the scale is 1/sqrt(d_k).

chapter       what a chapter, a knob, a figure and a number are: records, and the whole contract with the page
values        what the page sends, checked and bounded
chapters/     one file per step of the argument
warm_up       computes ahead what chapters keep, so that the first drag is as quick as the next
model_view    the chapter that shows an audit of the reader's own model

Every number comes from the operator and the theory of this package. The page draws what it is given
and computes nothing.
"""
