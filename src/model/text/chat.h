/*
 * Chat formats: the text around the messages of one user and one assistant. Jinja templates are not
 * run, but recognised by parts of their text (tests/oracle/make_chat.py).
 *
 * A conversation is `bos`, `start`, then for each turn `user`, the message, `header` and the
 * answer, with `end` between turns.
 */
#ifndef KVD_MODEL_TEXT_CHAT_H
#define KVD_MODEL_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

enum { KVD_CHAT_MARKS = 4 };

typedef struct {
    const char *name;
    const char *bos;   /* beginning-of-text token, or "" */
    const char *start; /* default system message, or "" */
    const char *user;
    /* Text between a user's message and the assistant's answer. */
    const char *header;
    const char *end;
    /* Token with which the model ends an answer. */
    const char *stop;
    bool trim; /* removes white space at both ends of user messages */
    /* True if the format is correct only for conversations of one turn. */
    bool one_turn;
    bool end_eos; /* true if `stop` is the eos_token of tokenizer_config.json */
    /*
     * Strings that a chat template of this format contains, and strings that it does not contain.
     * NULL ends a list.
     */
    const char *has[KVD_CHAT_MARKS], *lacks[KVD_CHAT_MARKS];
} kvd_chat;

/* Values of the option --chat; NULL ends the list. */
extern const char *const kvd_chat_words[];
enum { KVD_CHAT_NONE, KVD_CHAT_AUTO };

/*
 * Returns the chat format that the option value kvd_chat_words[word] names, or NULL for "none" and
 * "auto".
 */
const kvd_chat *kvd_chat_form(int word);

/* Returns the chat format to which a Jinja template belongs, or NULL if it belongs to none. */
const kvd_chat *kvd_chat_recognise(const char *template_text);

/*
 * Reads the chat template in a folder; *path receives its allocated path. Returns NULL and fills
 * *err if the format is unknown or contradicts tokenizer_config.json.
 */
const kvd_chat *kvd_chat_read(const char *folder, char **path, kvd_err *err);

/* One turn of a conversation, as strings that are tokenized separately. */
typedef struct {
    /*
     * Texts before the user's message: begin-of-text token, system message, begin of the message.
     */
    const char *before[3];
    const char *text; /* user's message, part of the caller's text */
    size_t len;
    /* Text between the user's message and the assistant's answer. */
    const char *after;
} kvd_chat_pieces;

/* Returns the texts of one turn with the user's message `text`, in UTF-8. */
kvd_chat_pieces kvd_chat_around(const kvd_chat *c, const char *text, bool first);

#endif
