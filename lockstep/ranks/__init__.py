"""The ranks of a launch: their process group, their store, and who watches over them."""
