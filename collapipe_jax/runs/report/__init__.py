"""Reports: one page of HTML that shows what a folder holds.

``gather`` finds what a folder holds and writes the page. ``training`` and ``studies``
turn it into plain data, ``network`` computes networks anew, and ``template.html`` shows the data.
"""
