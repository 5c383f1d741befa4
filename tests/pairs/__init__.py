"""Where features meet: what each feature touches, and what becomes of each pair that touches the same."""
