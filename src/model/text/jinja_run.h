/* Internal header of jinja*.c: state of an interpreter that runs a Jinja template. Code in branches
 * that are not taken is only parsed (`live` is false). All values are kept until the run ends;
 * functions return borrowed values. */
#ifndef KVD_MODEL_TEXT_JINJA_RUN_H
#define KVD_MODEL_TEXT_JINJA_RUN_H

#include <stdbool.h>
#include <stddef.h>

#include "model/text/jinja.h"

enum {
    MAX_DEPTH = 100,    /* nested expressions, blocks and calls of macros */
    MAX_STEPS = 100000, /* tags run and values made */
    MAX_FRAMES = MAX_DEPTH + 2,
    MAX_OUTPUT = 1 << 22,
    MAX_BYTES = 1 << 26, /* bytes of texts and lists read, written and compared */
    COMPARISON = 128,    /* bytes that a comparison of two values counts as */
    MAX_ARGS = 8
};

typedef enum { TEXT, PRINT, BLOCK } node_kind;

/* part of a Jinja template: text outside tags, or the inside of a tag such as "{{ x }}" */
typedef struct {
    node_kind kind;
    const char *at;
    size_t n;
} node;

typedef enum { END, NAME, STRING, NUMBER, SIGN } token_kind;

/* position in a template tag, and the token that was read last */
typedef struct {
    const char *p, *end;
    token_kind kind;
    const char *token;
    size_t n;
} cursor;

typedef struct {
    char *s;
    size_t n, capacity;
} buffer;

typedef struct {
    node *nodes;
    size_t n_nodes;
    json_t *kept;      /* every value that was made */
    json_t *undefined; /* marks a variable without a value; compared by address */
    json_t *spaces;    /* namespace objects, the only values that change */
    json_t *macros;    /* name: number of the node that defines it */
    json_t *frame[MAX_FRAMES];
    int n_frames, base; /* a macro sees frame 0 and those from `base` on */
    buffer out;
    cursor at;
    size_t steps, bytes;
    int depth;
    enum { GO, BREAK, CONTINUE } jump;
    /* error messages, or NULL. raised: error in an expression, ignored if the expression's value is
     * not used; broken: error that ends the run of the template */
    const char *raised, *broken;
} run;

typedef struct {
    json_t *value[MAX_ARGS], *named;
    int n;
} arguments;

static inline bool is_live(const run *r, bool live)
{
    return live && !r->raised && !r->broken;
}

static inline bool is_undefined(const run *r, const json_t *v)
{
    return v == r->undefined;
}

static inline bool is_number(const json_t *v)
{
    return json_is_integer(v) || json_is_boolean(v);
}

static inline json_int_t number_of(const json_t *v)
{
    return json_is_integer(v) ? json_integer_value(v) : json_is_true(v);
}

/* Ends the run of the template with the error message `why`. */
void kvd_jinja_stop(run *r, const char *why);
/* Records that the current expression failed with the error message `why`. The failure has no
 * effect if the expression's value is not used. Returns the undefined value. */
json_t *kvd_jinja_raise(run *r, const char *why);
/* Counts `bytes` that an operation reads or writes. Ends the run of a template at the limit
 * MAX_BYTES, so that no template takes all time or memory. */
void kvd_jinja_count(run *r, size_t bytes);
/* Returns the bytes of v: the length of a text, or one pointer for each element of a list or
 * dictionary. */
size_t kvd_jinja_bytes(const json_t *v);
/* Returns true if v was made by namespace(). */
bool kvd_jinja_is_space(const run *r, const json_t *v);

/* Takes ownership of a new value until the run of the template ends, and returns the value. If
 * `value` is NULL, the run fails. */
json_t *kvd_jinja_keep(run *r, json_t *value);
json_t *kvd_jinja_text(run *r, const char *s, size_t n);
json_t *kvd_jinja_bool(run *r, bool on);

/* Appends n bytes to the output. */
void kvd_jinja_put(run *r, const char *s, size_t n);
/* Appends a value to the output, in the notation of Python's str. */
void kvd_jinja_put_value(run *r, const json_t *v);
/* Redirects the template's output to a new buffer. Returns the old buffer, which must be passed to
 * kvd_jinja_end_capture. */
buffer kvd_jinja_begin_capture(run *r);
/* Returns the output since kvd_jinja_begin_capture as a text value. Makes `before` the output
 * buffer again. */
json_t *kvd_jinja_end_capture(run *r, buffer before);

/* Return what `if v`, `a == b` and `v in list` give in a template. */
bool kvd_jinja_is_true(const run *r, const json_t *v);
bool kvd_jinja_is_equal(run *r, const json_t *a, const json_t *b);
bool kvd_jinja_contains(run *r, const json_t *list, const json_t *v);
/* Returns the number of characters of a text, or of elements of a list or dictionary. */
size_t kvd_jinja_length(const json_t *v);
/* Returns the slice v[from:to] of a list or text. */
json_t *kvd_jinja_part(run *r, const json_t *v, size_t from, size_t to);
/* Returns v[key], or the undefined value if there is none. */
json_t *kvd_jinja_item(run *r, const json_t *v, const json_t *key);
/* Returns a list of a dictionary's keys, of its values or, if `keys` and `values` are true, of
 * pairs [key, value]. */
json_t *kvd_jinja_entries(run *r, json_t *v, bool keys, bool values);
/* Apply method v.name(a), filter v | name(a) or test `v is name(a)`. An unknown name fails the
 * evaluation (kvd_jinja_raise). */
json_t *kvd_jinja_method(run *r, json_t *v, const char *name, const arguments *a);
json_t *kvd_jinja_filter(run *r, json_t *v, const char *name, const arguments *a);
json_t *kvd_jinja_test(run *r, json_t *v, const char *name, const arguments *a);

/* Reads the next token of the current template tag. */
void kvd_jinja_next(run *r);
void kvd_jinja_open_tag(run *r, size_t i);
bool kvd_jinja_is_token(const run *r, const char *text);
bool kvd_jinja_accept(run *r, const char *text);
void kvd_jinja_expect(run *r, const char *text);
/* Copies the current token, which must be a name, and reads the next one. */
bool kvd_jinja_take_name(run *r, char name[64]);

/* Returns a variable's value from the innermost frame that has the variable. */
json_t *kvd_jinja_look_up(run *r, const char *name);
/* Sets a variable in the innermost frame. */
void kvd_jinja_assign(run *r, const char *name, json_t *value);
/* Opens a frame for the variables of a loop or macro. Returns false at the limit of nesting. */
bool kvd_jinja_push_frame(run *r);

/* Evaluates a template expression. If `live` is false, only parses it. */
json_t *kvd_jinja_expression(run *r, bool live);
/* Evaluates a template expression up to a following `if B else C`. If `live` is false, only parses
 * it. */
json_t *kvd_jinja_disjunction(run *r, bool live);

/* Runs the template from node i to the next tag whose first word is in `ends` or, if `ends` is
 * NULL, to the end. Returns the tag's node number. The tag's first word becomes the current token.
 *
 * - live: if false, the nodes are only parsed */
size_t kvd_jinja_run_until(run *r, size_t i, const char *const *ends, bool live);

#endif
