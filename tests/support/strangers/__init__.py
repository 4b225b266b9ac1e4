"""What other producers may send: a corpus as data, and clients that send it byte by byte."""
