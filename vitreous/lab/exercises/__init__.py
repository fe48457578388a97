"""Ten programming exercises, from cutting an image into patches to training a small ViT.

Each file here is handed out to the learner: the task and a stub to complete. The module of the same name in ``checks/``
diagnoses the answer. ``table.py`` lists the exercises in order.
"""
