"""Games of Gymnasium and PettingZoo behind one interface."""
