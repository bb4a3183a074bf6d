/* Kernels of Palu's decode attention on Hopper, and their launches. */
#include "kernels/rivals/palu_decode.cuh"

namespace
{
template <int dtype, int rank_k>
__global__ void __launch_bounds__(THREADS, 1) palu_kernel(const __grid_constant__ params p)
{
    extern __shared__ __align__(1024) char base[];
    const uint32_t smem = kvd_smem(base);
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.places; i++) {
            mbar_init(smem + OFF_FULL + i * 8, 1);
            /* Eight arrivals free a slot of the ring buffer: one by each of the 4 warps that read
             * it, in each of 2 CTAs. */
            mbar_init(smem + OFF_EMPTY + i * 8, 8);
        }
        mbar_init(smem + OFF_UP_BARRIERS, 1);
        mbar_init(smem + OFF_UP_BARRIERS + 8, 8);
        fence_mbar_init();
    }
    cluster_sync();
    if (threadIdx.x >= 256) {
        registers_down<56>();
        if (threadIdx.x == 256)
            produce(p, smem);
    } else {
        registers_up<224>();
        consume<dtype, rank_k>(p, base, smem);
    }
    __syncwarp();
    cluster_sync(); /* the other CTA may still be writing to this CTA's memory */
}

/* Merges the outputs of page ranges. Each CTA has one query head of one request, and each thread
 * has one dimension. */
template <int dtype> __global__ void merge_kernel(const __grid_constant__ params p)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    const int b = static_cast<int>(blockIdx.x) / p.n_heads,
              head = static_cast<int>(blockIdx.x) % p.n_heads;
    const int kv = head / p.group, g = kv / 4, rank = (kv & 3) / 2,
              query = (kv & 1) * 4 + head % p.group;
    const int per_group = __ldg(p.prefix + p.batch), pages = per_group * p.n_groups,
              used = clusters_used(p, pages);
    const long long first = static_cast<long long>(g) * per_group + __ldg(p.prefix + b);
    const long long last = static_cast<long long>(g) * per_group + __ldg(p.prefix + b + 1) - 1;
    const long long from = ((first + 1) * used - 1) / pages, to = ((last + 1) * used - 1) / pages;
    const long long unit = static_cast<long long>(g) * p.batch + b;
    float top = -CUDART_INF_F, total = 0, sum = 0;
    for (long long i = from; i <= to; i++)
        for (int w = 0; w < 2; w++)
            top = fmaxf(top, p.part_ml[((((i + unit) * 2 + rank) * 2 + w) * QUERIES + query) * 2]);
#pragma unroll 4
    for (long long i = from; i <= to; i++)
#pragma unroll
        for (int w = 0; w < 2; w++) {
            const long long at = (((i + unit) * 2 + rank) * 2 + w) * QUERIES + query;
            const float2 ml = *reinterpret_cast<const float2 *>(p.part_ml + at * 2);
            const float weight = kvd_exp2_in_order(ml.x - top);
            total += ml.y * weight;
            sum += p.part[at * p.rank_v + threadIdx.x] * weight;
        }
    p.o[static_cast<long long>(blockIdx.x) * p.rank_v + threadIdx.x] =
        static_cast<uint16_t>(pack<dtype == KVD_BF16>(sum / total, 0));
}

/* Sets prefix [batch + 1] to the number of pages of all earlier requests. Runs in one CTA. */
__global__ void plan_kernel(const int32_t *kv_len, int batch, int32_t *prefix)
{
    __shared__ int32_t sums[1024];
    const int each = (batch + 1023) / 1024, first = static_cast<int>(threadIdx.x) * each;
    int32_t mine = 0;
    for (int b = first; b < min(first + each, batch); b++)
        mine += (kv_len[b] + TOKENS - 1) / TOKENS;
    sums[threadIdx.x] = mine;
    __syncthreads();
    for (int far = 1; far < 1024; far *= 2) {
        const int32_t other = static_cast<int>(threadIdx.x) >= far ? sums[threadIdx.x - far] : 0;
        __syncthreads();
        sums[threadIdx.x] += other;
        __syncthreads();
    }
    int32_t before = sums[threadIdx.x] - mine;
    for (int b = first; b < min(first + each, batch); b++) {
        prefix[b] = before;
        before += (kv_len[b] + TOKENS - 1) / TOKENS;
    }
    if (threadIdx.x == 1023)
        prefix[batch] = sums[1023];
}

size_t prefix_bytes(int batch)
{
    return (static_cast<size_t>(batch) + 1 + 63) / 64 * 64 * sizeof(int32_t);
}

size_t n_slots(const kvd_palu_shape *s, int batch, int n_clusters)
{
    return (static_cast<size_t>(n_clusters) +
            static_cast<size_t>(s->n_kv_heads / 4) * static_cast<size_t>(batch)) *
           4;
}

cudaError_t check(const kvd_palu_decode_args *a)
{
    if (!a || (a->dtype != KVD_BF16 && a->dtype != KVD_F16) || kvd_palu_shape_check(&a->shape) ||
        a->batch < 1 || a->max_pages < 1 || a->n_clusters < 1 || !a->kv_len || !a->workspace)
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

/* Arguments to launch clusters of two CTAs. Must not be copied, because `config` points to
 * `attribute`. */
struct pair_launch {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;

    pair_launch(int n_ctas, int bytes, cudaStream_t stream)
    {
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim = {2, 1, 1};
        config.gridDim = dim3(static_cast<unsigned>(n_ctas));
        config.blockDim = dim3(THREADS);
        config.dynamicSmemBytes = static_cast<size_t>(bytes);
        config.stream = stream;
        config.attrs = &attribute;
        config.numAttrs = 1;
    }
};

typedef void (*kernel)(params);

template <int dtype, int step> kernel kernel_of(int rank_k)
{
    if constexpr (step > KVD_PALU_RANK_K_MIN / 16) {
        if (rank_k < 16 * step)
            return kernel_of<dtype, step - 1>(rank_k);
    }
    return palu_kernel<dtype, 16 * step>;
}

template <int dtype>
cudaError_t launch(const params &p, const kvd_palu_decode_args *a, cudaStream_t stream)
{
    const int bytes = OFF_UP + p.rank_k * 512 + p.places * PIECE_BYTES;
    const kernel run = kernel_of<dtype, KVD_PALU_RANK_MAX / 16>(p.rank_k);
    cudaError_t e = cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess)
        return e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction
                   ? cudaErrorNotSupported
                   : e;
    pair_launch l(2 * p.n_clusters, bytes, stream);
    e = cudaLaunchKernelEx(&l.config, run, p);
    return e == cudaSuccess ? kvd_launch_early(true, merge_kernel<dtype>,
                                               dim3(static_cast<unsigned>(a->batch * p.n_heads)),
                                               dim3(static_cast<unsigned>(p.rank_v)), 0, stream, p)
                            : e;
}
} // namespace

int kvd_palu_decode_clusters(void)
{
    int sms, major;
    if (kvd_device_attribute(cudaDevAttrMultiProcessorCount, &sms) != cudaSuccess ||
        kvd_compute_capability(&major) != cudaSuccess || major != 9)
        return -1;
    if (cudaFuncSetAttribute(palu_kernel<KVD_BF16, KVD_PALU_RANK_MAX>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_MAX) != cudaSuccess)
        return -1;
    const pair_launch l(sms / 2 * 2, SMEM_MAX, NULL);
    int n;
    return cudaOccupancyMaxActiveClusters(&n, palu_kernel<KVD_BF16, KVD_PALU_RANK_MAX>,
                                          &l.config) == cudaSuccess &&
                   n >= 1
               ? n
               : -1;
}

size_t kvd_palu_decode_workspace_bytes(const kvd_palu_shape *shape, int batch, int n_clusters)
{
    if (kvd_palu_shape_check(shape) || batch < 1 || n_clusters < 1)
        return 0;
    const size_t slots = n_slots(shape, batch, n_clusters);
    return prefix_bytes(batch) +
           slots * QUERIES * (static_cast<size_t>(shape->rank_v) + 2) * sizeof(float);
}

cudaError_t kvd_palu_decode_plan(const kvd_palu_decode_args *a, cudaStream_t stream)
{
    const cudaError_t e = check(a);
    if (e != cudaSuccess)
        return e;
    plan_kernel<<<1, 1024, 0, stream>>>(a->kv_len, a->batch, static_cast<int32_t *>(a->workspace));
    return cudaGetLastError();
}

cudaError_t kvd_palu_decode(const kvd_palu_decode_args *a, cudaStream_t stream)
{
    const cudaError_t e = check(a);
    if (e != cudaSuccess)
        return e;
    if (!a->page_table || !a->q || !a->pool || !a->up || !a->rope_cos || !a->rope_sin || !a->o)
        return cudaErrorInvalidValue;
    params p;
    p.pool = static_cast<const uint16_t *>(a->pool);
    p.up = static_cast<const uint16_t *>(a->up);
    p.q = static_cast<const uint16_t *>(a->q);
    p.kv_len = a->kv_len;
    p.page_table = a->page_table;
    p.prefix = static_cast<const int32_t *>(a->workspace);
    p.cosine = a->rope_cos;
    p.sine = a->rope_sin;
    p.part_ml =
        reinterpret_cast<float *>(static_cast<char *>(a->workspace) + prefix_bytes(a->batch));
    p.part = p.part_ml + n_slots(&a->shape, a->batch, a->n_clusters) * QUERIES * 2;
    p.o = static_cast<uint16_t *>(a->o);
    p.batch = a->batch;
    p.max_pages = a->max_pages;
    p.n_heads = a->shape.n_heads;
    p.n_groups = a->shape.n_kv_heads / KVD_PALU_GROUP;
    p.group = a->shape.n_heads / a->shape.n_kv_heads;
    p.rank_k = a->shape.rank_k;
    p.rank_v = a->shape.rank_v;
    p.places = places_for(p.rank_k);
    p.n_clusters = a->n_clusters;
    p.page_elements = static_cast<long long>(kvd_palu_page_elements(&a->shape));
    return a->dtype == KVD_BF16 ? launch<KVD_BF16>(p, a, stream) : launch<KVD_F16>(p, a, stream);
}
