/* Chat formats: the text around the messages of a user and an assistant. Templates are run on a few
 * conversations, and recognised by what they write. */
#ifndef KVD_MODEL_TEXT_CHAT_H
#define KVD_MODEL_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    const char *name;
    const char *bos;   /* beginning-of-text token, or "" */
    const char *start; /* default system message, or "" */
    const char *user;
    /* text between a user's message and the assistant's answer */
    const char *header;
    const char *end;
    /* token with which the model ends an answer */
    const char *stop;
    bool trim; /* removes white space at both ends of user messages */
    /* true if the format is correct only for conversations of one turn */
    bool one_turn;
    bool end_eos; /* true if `stop` is the eos_token of tokenizer_config.json */
    /* text that the template inserts before earlier answers but not before a new answer, or NULL */
    const char *head;
    /* chat templates that contain this text remove the reasoning from earlier answers; may be
     * NULL */
    const char *mark;
} kvd_chat;

/* values of --chat (format of conversations): none, auto or a format's name; NULL ends the list */
extern const char *const kvd_chat_words[];
enum { KVD_CHAT_NONE, KVD_CHAT_AUTO };

/* Returns the chat format that has number `word` in the list of --chat values, kvd_chat_words.
 * Returns NULL for "none" and "auto". */
const kvd_chat *kvd_chat_form(int word);

/* Returns the chat format in which a Jinja template writes conversations. If kvdim knows no such
 * format, returns NULL with the reason in *err. On success, *err is undefined. */
const kvd_chat *kvd_chat_recognise(const char *template_text, kvd_err *err);

/* Reads the chat template of a model folder and returns its format. *path receives the path of the
 * template, allocated. Fails on unknown formats. */
const kvd_chat *kvd_chat_read(const char *folder, char **path, kvd_err *err);

/* one turn of a conversation, in strings that are tokenized separately */
typedef struct {
    /* strings before the user's message: begin-of-text token, system message, start of the user's
     * turn */
    const char *before[3];
    const char *text; /* user's message, part of the caller's text */
    size_t len;
    /* text between the user's message and the assistant's answer */
    const char *after;
} kvd_chat_pieces;

/* Returns the strings that chat format *c puts around a user's message (UTF-8). `first`: true for
 * the first message of a conversation. */
kvd_chat_pieces kvd_chat_around(const kvd_chat *c, const char *text, bool first);

#endif
