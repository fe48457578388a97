def self_attention(x, qkv, proj, num_heads):
    b, n, d = x.shape
    k = d // num_heads
    queries, keys, values = qkv(x).reshape(b, n, 3, num_heads, k).permute(2, 0, 3, 1, 4)
    logits = queries @ keys.transpose(-2, -1) / k**0.5
    out = logits.softmax(-1) @ values
    out = out.transpose(1, 2)
    return proj(out.reshape(b, n, d))
