def block(x, norm1, attention, norm2, mlp):
    x = x + attention(norm1(x))
    return x + mlp(norm2(x))
