/* Makes a tokenizer.json from the metadata of a GGUF file. */
#include "model/text/tokenizer/steps.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4 };
enum { MAX_TOKENS = 1 << 24 };

/* rules by which a tokenizer splits text into words; a GGUF file names them in key
 * tokenizer.ggml.pre */
typedef struct {
    const char *name;
    /* regular expression of a word; NULL means GPT-2's */
    const char *pattern;
    bool nfc, whole_words, bos;
} word_kind;

#define LLAMA3_WITH(digits)                                                                        \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits                     \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TEKKEN                                                                                     \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"    \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"   \
    "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const word_kind word_kinds[] = {
    {"gpt-2", NULL, false, false, false},
    {"llama-bpe", LLAMA3_WITH("{1,3}"), false, true, true},
    {"llama3", LLAMA3_WITH("{1,3}"), false, true, true},
    {"llama-v3", LLAMA3_WITH("{1,3}"), false, true, true},
    {"qwen2", LLAMA3_WITH(""), true, false, false},
    {"deepseek-r1-qwen", LLAMA3_WITH(""), true, false, false},
    {"tekken", TEKKEN, false, true, true},
    {"falcon", NULL, false, false, false},
};
enum { N_WORD_KINDS = sizeof word_kinds / sizeof word_kinds[0] };

typedef struct {
    const kvd_gguf *g;
    const word_kind *words; /* NULL for a SentencePiece tokenizer */
    const char **token;     /* texts of n tokens, not zero-terminated */
    size_t *len;
    size_t n;
    kvd_vocab vocab;
} source;

static int no_memory(kvd_err *err)
{
    return kvd_no_memory(err, "a tokenizer", sizeof(source));
}

static int read_tokens(source *s, kvd_err *err)
{
    kvd_gguf_list list;
    const int status = kvd_gguf_texts(s->g, "tokenizer.ggml.tokens", &list, err);
    if (status)
        return status < 0 ? -1 : kvd_fail(err, "'tokenizer.ggml.tokens' is missing");
    if (!list.left || list.left > MAX_TOKENS)
        return kvd_fail(err, "'tokenizer.ggml.tokens' has %zu texts, not 1 to %d", list.left,
                        MAX_TOKENS);
    s->n = list.left;
    s->token = calloc(s->n, sizeof(*s->token));
    s->len = calloc(s->n, sizeof *s->len);
    if (!s->token || !s->len)
        return no_memory(err);
    for (size_t i = 0; kvd_gguf_next_text(&list, &s->token[i], &s->len[i]); i++) {
        if (memchr(s->token[i], 0, s->len[i]) ||
            kvd_utf8_first_bad(s->token[i], s->len[i]) < s->len[i])
            return kvd_fail(err, "tokenizer.ggml.tokens[%zu] has a zero byte or is no UTF-8", i);
        if (kvd_vocab_add(&s->vocab, s->token[i], s->len[i], (uint32_t)i, err))
            return -1;
    }
    return kvd_vocab_build(&s->vocab, err) ? kvd_in(err, "'tokenizer.ggml.tokens'") : 0;
}

/* Fails if a list of the GGUF file exists but does not have one element per token. */
static int check_length(const source *s, const char *key, int status, const kvd_gguf_list *list,
                        kvd_err *err)
{
    if (status < 0)
        return -1;
    return !status && list->left != s->n
               ? kvd_fail(err, "'%s' has %zu entries, 'tokenizer.ggml.tokens' has %zu", key,
                          list->left, s->n)
               : 0;
}

static int read_id(const source *s, const char *key, int64_t *id, kvd_err *err)
{
    *id = -1;
    const int status = kvd_gguf_whole(s->g, key, id, err);
    if (status)
        return status < 0 ? -1 : 0;
    return *id < 0 || (uint64_t)*id >= s->n
               ? kvd_fail(err, "'%s' is %" PRId64 ", the vocabulary has %zu tokens", key, *id, s->n)
               : 0;
}

static json_t *token_text(const source *s, size_t i)
{
    return json_stringn(s->token[i], s->len[i]);
}

/* Appends `item` and takes ownership of it. If memory runs out, *list becomes NULL. */
static void append(json_t **list, json_t *item)
{
    if (json_array_append_new(*list, item)) {
        json_decref(*list);
        *list = NULL;
    }
}

/* merge of the tokens `left` and `right` into `product` */
typedef struct {
    double score;
    uint32_t left, right, product;
    uint32_t left_characters, right_characters;
} merge;

typedef struct {
    merge *m;
    size_t n, capacity;
} merges;

/* Orders merges by higher score, then longer left token, then longer right token, then smaller
 * id. */
static int compare_merges(const void *a, const void *b)
{
    const merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left_characters != y->left_characters)
        return x->left_characters > y->left_characters ? -1 : 1;
    if (x->right_characters != y->right_characters)
        return x->right_characters > y->right_characters ? -1 : 1;
    return (x->product > y->product) - (x->product < y->product);
}

static uint32_t count_characters(const char *s, size_t len)
{
    uint32_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

static int add_merges_of(const source *s, size_t product, double score, merges *all, kvd_err *err)
{
    const char *text = s->token[product];
    const size_t len = s->len[product];
    for (size_t cut = 1; cut < len; cut++) {
        merge m = {.score = score, .product = (uint32_t)product};
        if (((unsigned char)text[cut] & 0xc0) == 0x80 ||
            !kvd_vocab_find(&s->vocab, text, cut, &m.left) ||
            !kvd_vocab_find(&s->vocab, text + cut, len - cut, &m.right))
            continue;
        m.left_characters = count_characters(text, cut);
        m.right_characters = count_characters(text + cut, len - cut);
        if (kvd_grow(&all->m, &all->capacity, all->n + 1, sizeof *all->m, err))
            return -1;
        all->m[all->n++] = m;
    }
    return 0;
}

static json_t *merges_from_scores(const source *s, kvd_err *err)
{
    static const char key[] = "tokenizer.ggml.scores";
    enum { LONGEST = 1024 }; /* bytes of the longest token that can be a product of merges */
    kvd_gguf_list scores;
    merges all = {0};
    json_t *list = NULL;
    double score;
    const int status = kvd_gguf_reals(s->g, key, &scores, err);
    if (check_length(s, key, status, &scores, err))
        return NULL;
    if (status) {
        kvd_fail(err, "'%s' is missing", key);
        return NULL;
    }
    for (size_t i = 0; kvd_gguf_next_real(&scores, &score); i++) {
        if (!(score == score)) {
            kvd_fail(err, "%s[%zu] is not a number", key, i);
            goto done;
        }
        if (s->len[i] > LONGEST) {
            kvd_fail(err, "tokenizer.ggml.tokens[%zu] has %zu bytes, more than %d", i, s->len[i],
                     LONGEST);
            goto done;
        }
        if (add_merges_of(s, i, score, &all, err))
            goto done;
    }
    if (all.n)
        qsort(all.m, all.n, sizeof *all.m, compare_merges);
    list = json_array();
    for (size_t i = 0; list && i < all.n; i++) {
        json_t *pair =
            json_pack("[o, o]", token_text(s, all.m[i].left), token_text(s, all.m[i].right));
        append(&list, pair);
    }
    if (!list)
        no_memory(err);
done:
    free(all.m);
    return list;
}

static json_t *read_merges(const source *s, kvd_err *err)
{
    kvd_gguf_list stored;
    const char *text;
    size_t len;
    const int status = kvd_gguf_texts(s->g, "tokenizer.ggml.merges", &stored, err);
    if (status < 0)
        return NULL;
    if (status && !s->words)
        return merges_from_scores(s, err);
    if (status) {
        kvd_fail(err, "'tokenizer.ggml.merges' is missing");
        return NULL;
    }
    json_t *list = json_array();
    for (size_t i = 0; list && kvd_gguf_next_text(&stored, &text, &len); i++) {
        json_t *merge_text = json_stringn(text, len);
        if (!merge_text) {
            kvd_fail(err, "tokenizer.ggml.merges[%zu] is no UTF-8", i);
            json_decref(list);
            return NULL;
        }
        append(&list, merge_text);
    }
    if (!list)
        no_memory(err);
    return list;
}

static json_t *build_model(const source *s, kvd_err *err)
{
    int64_t unknown = 0;
    json_t *list = read_merges(s, err), *vocab = json_object(), *model = NULL;
    if (!list)
        goto done;
    if (!vocab) {
        no_memory(err);
        goto done;
    }
    for (size_t i = 0; i < s->n; i++)
        if (json_object_setn_new(vocab, s->token[i], s->len[i], json_integer((json_int_t)i))) {
            no_memory(err);
            goto done;
        }
    if (read_id(s, "tokenizer.ggml.unknown_token_id", &unknown, err))
        goto done;
    if (s->words)
        model = json_pack("{s:s, s:n, s:b, s:b, s:b, s:O, s:O}", "type", "BPE", "unk_token",
                          "fuse_unk", 0, "byte_fallback", 0, "ignore_merges",
                          (int)s->words->whole_words, "vocab", vocab, "merges", list);
    else
        model = json_pack("{s:s, s:o, s:b, s:b, s:O, s:O}", "type", "BPE", "unk_token",
                          token_text(s, unknown < 0 ? 0 : (size_t)unknown), "fuse_unk", 1,
                          "byte_fallback", 1, "vocab", vocab, "merges", list);
    if (!model)
        no_memory(err);
done:
    json_decref(list);
    json_decref(vocab);
    return model;
}

static json_t *build_added(const source *s, kvd_err *err)
{
    static const char key[] = "tokenizer.ggml.token_type";
    kvd_gguf_list types;
    int64_t type;
    if (check_length(s, key, kvd_gguf_wholes(s->g, key, &types, err), &types, err))
        return NULL;
    json_t *list = json_array();
    for (size_t i = 0; list && kvd_gguf_next_whole(&types, &type); i++) {
        if ((type != UNKNOWN && type != CONTROL && type != USER_DEFINED) || !s->len[i])
            continue;
        json_t *token = json_pack("{s:I, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i,
                                  "content", token_text(s, i), "single_word", 0, "lstrip", 0,
                                  "rstrip", 0, "normalized", 0, "special", type != USER_DEFINED);
        append(&list, token);
    }
    if (!list)
        no_memory(err);
    return list;
}

static json_t *build_normalizer(const source *s, bool space)
{
    static const char mark[] = "\xe2\x96\x81";
    if (s->words)
        return s->words->nfc ? json_pack("{s:s}", "type", "NFC") : json_null();
    json_t *replace = json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ",
                                "content", mark);
    if (!space)
        return replace;
    return json_pack("{s:s, s:[{s:s, s:s}, o]}", "type", "Sequence", "normalizers", "type",
                     "Prepend", "prepend", mark, replace);
}

static json_t *build_pretokenizer(const source *s)
{
    if (!s->words)
        return json_null();
    json_t *bytes = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "trim_offsets", 1, "use_regex", !s->words->pattern);
    if (strcmp(s->words->name, "falcon") == 0)
        return json_pack("{s:s, s:[{s:s, s:s}, o, {s:s, s:b}, {s:s, s:{s:s}, s:s, s:b}]}", "type",
                         "Sequence", "pretokenizers", "type", "Punctuation", "behavior",
                         "Contiguous", bytes, "type", "Digits", "individual_digits", 0, "type",
                         "Split", "pattern", "Regex", "[0-9][0-9][0-9]", "behavior", "Isolated",
                         "invert", 0);
    if (!s->words->pattern)
        return bytes;
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers",
                     "type", "Split", "pattern", "Regex", s->words->pattern, "behavior", "Isolated",
                     "invert", 0, bytes);
}

static json_t *build_decoder(const source *s, bool space)
{
    if (s->words)
        return json_pack("{s:s}", "type", "ByteLevel");
    json_t *list =
        json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String",
                  "\xe2\x96\x81", "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (list && space)
        append(&list, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1,
                                "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", list);
}

/* Appends the special token of GGUF key `key` if GGUF key `flag` is true. If key `flag` is missing,
 * `absent` is used in its place. */
static int add_special(const source *s, const char *flag, const char *key, bool absent,
                       const char *name, json_t *single, json_t *tokens, kvd_err *err)
{
    bool wanted = absent;
    int64_t id = -1;
    if (kvd_gguf_bool(s->g, flag, &wanted, err) < 0)
        return -1;
    if (!wanted)
        return 0;
    if (read_id(s, key, &id, err))
        return -1;
    if (id < 0)
        return kvd_fail(err, "'%s' is missing, but the token is to be added", key);
    return json_array_append_new(
               single, json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", name, "type_id", 0)) ||
                   json_object_set_new(tokens, name,
                                       json_pack("{s:s, s:[I], s:[o]}", "id", name, "ids",
                                                 (json_int_t)id, "tokens",
                                                 token_text(s, (size_t)id)))
               ? no_memory(err)
               : 0;
}

static json_t *build_template(const source *s, kvd_err *err)
{
    json_t *single = json_array(), *tokens = json_object(), *result = NULL;
    const bool bos = !s->words || s->words->bos;
    if (!single || !tokens) {
        no_memory(err);
        goto done;
    }
    if (add_special(s, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id", bos, "bos",
                    single, tokens, err))
        goto done;
    if (json_array_append_new(single,
                              json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0))) {
        no_memory(err);
        goto done;
    }
    if (add_special(s, "tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id", false, "eos",
                    single, tokens, err))
        goto done;
    result = json_pack("{s:s, s:O, s:[], s:O}", "type", "TemplateProcessing", "single", single,
                       "pair", "special_tokens", tokens);
    if (!result)
        no_memory(err);
done:
    json_decref(single);
    json_decref(tokens);
    return result;
}

static int find_words(source *s, kvd_err *err)
{
    const char *name;
    size_t len;
    int status = kvd_gguf_text(s->g, "tokenizer.ggml.model", &name, &len, err);
    if (status)
        return status < 0
                   ? -1
                   : kvd_fail(err,
                              "there is no tokenizer in it: 'tokenizer.ggml.model' is missing");
    if (len == 5 && memcmp(name, "llama", 5) == 0)
        return 0;
    if (len != 4 || memcmp(name, "gpt2", 4) != 0)
        return kvd_fail(err, "'tokenizer.ggml.model' is '%.*s', only llama and gpt2 are supported",
                        len < 40 ? (int)len : 40, name);
    status = kvd_gguf_text(s->g, "tokenizer.ggml.pre", &name, &len, err);
    if (status)
        return status < 0
                   ? -1
                   : kvd_fail(err, "'tokenizer.ggml.pre' is missing, words cannot be told apart");
    for (size_t i = 0; i < N_WORD_KINDS; i++)
        if (len == strlen(word_kinds[i].name) && memcmp(name, word_kinds[i].name, len) == 0)
            s->words = &word_kinds[i];
    return s->words
               ? 0
               : kvd_fail(err,
                          "'tokenizer.ggml.pre' is '%.*s', supported are gpt-2, llama-bpe, llama3, "
                          "llama-v3, qwen2, deepseek-r1-qwen, tekken, falcon",
                          len < 40 ? (int)len : 40, name);
}

static json_t *build(source *s, kvd_err *err)
{
    bool space = true;
    if (find_words(s, err) || read_tokens(s, err) ||
        kvd_gguf_bool(s->g, "tokenizer.ggml.add_space_prefix", &space, err) < 0)
        return NULL;
    json_t *model = build_model(s, err), *added = model ? build_added(s, err) : NULL;
    json_t *around = added ? build_template(s, err) : NULL, *root = NULL;
    if (around) {
        root = json_pack("{s:s, s:O, s:O, s:O, s:o, s:o, s:o}", "version", "1.0", "model", model,
                         "added_tokens", added, "post_processor", around, "normalizer",
                         build_normalizer(s, space), "pre_tokenizer", build_pretokenizer(s),
                         "decoder", build_decoder(s, space));
        if (!root)
            no_memory(err);
    }
    json_decref(model);
    json_decref(added);
    json_decref(around);
    return root;
}

json_t *kvd_gguf_tokenizer(const kvd_gguf *g, kvd_err *err)
{
    source s = {.g = g};
    json_t *root = build(&s, err);
    free(s.token);
    free(s.len);
    kvd_vocab_release(&s.vocab);
    return root;
}
