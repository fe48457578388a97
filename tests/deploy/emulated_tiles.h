/* AMX tile instructions as plain C, so that the kernel for them can be tested where there are none. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef union { uint8_t u8[16][64]; int8_t i8[16][64]; uint16_t bf16[16][32]; int32_t i32[16][16]; float f32[16][16]; } Tile;

static _Thread_local Tile tiles[8];
static _Thread_local int configured;

static Tile *tile(int number) {
    if (!configured) abort(); /* as the processor would */
    return tiles + number;
}
static void _tile_loadconfig(const void *config) {
    const uint8_t *bytes = config;
    configured = bytes[0] == 1;
    for (int t = 0; t < 8; t++) configured &= bytes[16 + 2 * t] == 64 && bytes[48 + t] == 16;
}
static void _tile_release(void) { configured = 0; }
static void _tile_zero(int t) { memset(tile(t), 0, sizeof(Tile)); }
static void _tile_loadd(int t, const void *from, long stride) {
    for (int r = 0; r < 16; r++) memcpy(tile(t)->u8[r], (const char *)from + r * stride, 64);
}
static void _tile_stored(int t, void *to, long stride) {
    for (int r = 0; r < 16; r++) memcpy((char *)to + r * stride, tile(t)->u8[r], 64);
}
static void _tile_dpbusd(int to, int a, int b) {
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++)
            for (int k = 0; k < 64; k++) tile(to)->i32[m][n] += tile(a)->u8[m][k] * tile(b)->i8[k / 4][4 * n + k % 4];
}
static float widened(uint16_t bf16) {
    uint32_t bits = (uint32_t)bf16 << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static void _tile_dpbf16ps(int to, int a, int b) {
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++)
            for (int k = 0; k < 32; k++)
                tile(to)->f32[m][n] += widened(tile(a)->bf16[m][k]) * widened(tile(b)->bf16[k / 2][2 * n + k % 2]);
}
