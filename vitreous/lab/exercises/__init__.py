"""Ten things to build by yourself, from cutting an image into patches to a small ViT that learns.

One file here is what a learner gets: the task and a blank. Its namesake in ``checks/`` finds out what is wrong with an
answer. ``table.py`` has their order.
"""
