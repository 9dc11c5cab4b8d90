"""Advantage estimators, one short file each; every module registers its functions by name."""
