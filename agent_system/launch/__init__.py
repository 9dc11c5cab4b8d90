"""What a user starts: the commands of `verl-mas`."""
