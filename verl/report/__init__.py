"""The page of a run: reads the files of its folder, writes one HTML file or serves it while the run
goes on. Imports no torch; nothing here is loaded by a run.

`folder.py` reads the small files of a run, `episodes.py` its trajectories, `index.py` puts both
together, `choose.py` and `pack.py` select and pack the texts, `page.py` writes the HTML file,
`watch.py` serves it.
"""
