"""With two parameters: are the weights of focal loss smaller, and its errors less sure?"""
