#include "common/rng.h"

#include <math.h>

__extension__ typedef unsigned __int128 u128;

static u128 wide(uint64_t high, uint64_t low)
{
    return (u128)high << 64 | low;
}

/* Returns the next number of splitmix64 (Steele, Lea, Flood 2014) with state *x. */
static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = *x += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void advance(kvd_rng *r)
{
    r->state = r->state * wide(2549297995355413924u, 4865540595714422341u) + r->inc;
}

void kvd_rng_seed(kvd_rng *r, uint64_t seed, uint64_t stream)
{
    uint64_t s = seed;
    const uint64_t high = splitmix(&s), low = splitmix(&s);
    /* PCG's increment must be odd and different for each stream. */
    uint64_t t = stream;
    r->inc = wide(splitmix(&t), stream) << 1 | 1;
    r->state = 0;
    advance(r);
    r->state += wide(high, low);
    advance(r);
}

uint64_t kvd_rng_u64(kvd_rng *r)
{
    advance(r);
    const uint64_t x = (uint64_t)(r->state >> 64) ^ (uint64_t)r->state;
    const unsigned rot = (unsigned)(r->state >> 122);
    return x >> rot | x << (-rot & 63);
}

/* Returns a uniform random integer below n, by Lemire's method (2019), which has no bias. */
uint64_t kvd_rng_below(kvd_rng *r, uint64_t n)
{
    u128 product = (u128)kvd_rng_u64(r) * n;
    if ((uint64_t)product < n) {
        const uint64_t least = -n % n;
        while ((uint64_t)product < least)
            product = (u128)kvd_rng_u64(r) * n;
    }
    return (uint64_t)(product >> 64);
}

double kvd_rng_uniform(kvd_rng *r)
{
    return (double)(kvd_rng_u64(r) >> 11) * 0x1p-53;
}

/* Returns a normal number by the polar method (Marsaglia & Bray 1964). */
double kvd_rng_normal(kvd_rng *r)
{
    for (;;) {
        const double u = 2 * kvd_rng_uniform(r) - 1, v = 2 * kvd_rng_uniform(r) - 1;
        const double s = u * u + v * v;
        if (s > 0 && s < 1)
            return u * sqrt(-2 * log(s) / s);
    }
}

void kvd_rng_choose(kvd_rng *r, size_t n, size_t k, size_t *index)
{
    for (size_t i = 0; i < n; i++)
        index[i] = i;
    for (size_t i = 0; i < k; i++) {
        const size_t j = i + kvd_rng_below(r, n - i), t = index[i];
        index[i] = index[j];
        index[j] = t;
    }
}
