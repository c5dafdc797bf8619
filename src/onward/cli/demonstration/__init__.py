"""What `onward demo` trains: a network that torch exported for inference, and handwritten digits.

The network is written by examples/models/export_digits_cnn.py. The digits are those of scikit-learn, 8x8 pixels from 0
to 16: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
CC BY 4.0.
"""
