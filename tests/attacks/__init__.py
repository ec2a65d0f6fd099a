"""Attacks on the library: each file tries to learn what nobody should.

Every attack is shown to succeed where what stops it is taken away. How long a
step takes is not protected, and no attack here looks at it.
"""
