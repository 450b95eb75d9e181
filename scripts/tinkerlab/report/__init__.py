"""One self-contained HTML page about a finished fine-tune, made from its results folder.

collect  reads the folder into plain values
figures  draws them as inline SVG that follows the page's light or dark colours
page     fills the template; everything that a user or a model wrote is escaped
"""
