"""stub"""
CITATION = """\
@misc{surprise_score,
    title = {Taken by Surprise: Contrast effect for Similarity Scores},
    author = {Bachlechner, Thomas C. and Martone, Mario and Schillo, Marjorie},
    year = {2023},
    eprint = {2308.09765},
    archivePrefix = {arXiv}
}"""
