#!/usr/bin/env python3
"""Plants bugs in copies of SLP's core and says which the tests find.

Each mutant is one small edit, built by plain gcc in a folder of its own, and run under the
unit tests and for up to --schedules schedules of the simulator; the first that fails is
its catch. A survivor is reported and makes the exit code 1.

    tests/slp/mutants.py [--schedules N] [--only NAME | --after NAME] [--jobs N]
"""
import argparse
import concurrent.futures
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CORE = ROOT / "kernel_compat" / "slp"
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

# Name, file, what is there (once), what is there instead.
MUTANTS = [
    ("duplicate_numbers_taken", "slp_seen.c", "|| was_here(window, number))", "|| false)"),
    ("old_numbers_forgotten_early", "slp_seen.c", "if (window->largest - number >= SLP_SEEN_FRAMES ||", "if (window->largest - number >= 8 ||"),
    ("window_of_numbers_not_cleared", "slp_seen.c", "clear_between(window, window->largest + 1, number);", "if (number < 40) clear_between(window, window->largest + 1, number);"),
    ("numbers_from_anywhere", "slp_seen.c", "#define SLP_NUMBERS_AHEAD 16384u", "#define SLP_NUMBERS_AHEAD 16385u"),
    ("numbers_of_the_honest_implausible", "slp_seen.c", "#define SLP_NUMBERS_AHEAD 16384u", "#define SLP_NUMBERS_AHEAD 16383u"),
    ("ack_run_one_too_long", "slp_seen.c", "base->ack_run = (uint16_t)(s->seen.run - 1);", "base->ack_run = s->seen.run;"),
    ("ack_run_not_counted_again", "slp_seen.c", "\tseen->run = next && seen->run > 0 ? (uint16_t)slp_min(seen->run + 1u, SLP_SEEN_FRAMES) : 0;\n", ""),
    ("ack_run_goes_on_over_a_gap", "slp_seen.c", "seen->run = next && seen->run > 0", "seen->run = seen->run > 0"),
    ("ack_ranges_one_too_long", "slp_seen.c", "slp_store16(payload + 4 * pairs + 2, (uint16_t)run);", "slp_store16(payload + 4 * pairs + 2, (uint16_t)(run + (gap > 1)));"),
    ("gaps_never_told", "slp_seen.c", "seen->gaps_due = SLP_GAPS_SAID;", "seen->gaps_due = 0;"),
    ("acks_wait_for_ever", "slp_seen.c", "seen->due = slp_min(seen->due, now + s->config.ack_delay_ns);", "(void)now;"),
    ("unacked_content_counts_as_received", "slp_session.c", "\tif (drop != SLP_TAKEN)\n\t\treturn drop; /* not acknowledged: it comes again */\n", "\tif (drop != SLP_TAKEN)\n\t\tslp_seen_add(s, number, now, base->type, false);\n\tif (drop != SLP_TAKEN)\n\t\treturn drop;\n"),
    ("payload_checksum_not_looked_at", "slp_session.c", "return crc == base->payload_crc;", "return crc == base->payload_crc || base->payload_bytes > 0;"),
    ("header_checksum_not_looked_at", "slp_wire.c", "if (slp_load32(frame + 28) != header_crc(frame, extension))", "if (slp_load32(frame + 28) != header_crc(frame, extension) && extension == 0)"),
    ("find_checksum_not_looked_at", "slp_wire.c", "if (slp_load32(frame + 28) != header_crc(frame, SLP_FIND_BYTES))", "if (0)"),
    ("find_zeros_not_looked_at", "slp_wire.c", " || !all_zero(frame + 6, 22) ||", " ||"),
    ("find_name_with_something_behind", "slp_wire.c", "!all_zero(name + i, SLP_NAME_BYTES - i) || ", ""),
    ("find_answered_from_no_port", "slp_wire.c", " || (out->type == SLP_FOUND && out->destination_port == 0)", ""),
    ("find_name_without_an_end", "slp_wire.c", "if (i == 0 || find->name[i])", "if (i == 0)"),
    ("ce_in_the_checksum", "slp_wire.c", "out[1] &= (uint8_t)~SLP_FLAG_CE;", ""),
    ("padding_is_payload", "slp_stream.c", "to = from + base->payload_bytes;", "to = from + (frame->bytes - SLP_BASE_BYTES - SLP_EAGER_BYTES);"),
    ("stream_overlap_not_skipped", "slp_stream.c", "payload += rx->arrived - from;", ""),
    ("spans_not_joined", "slp_stream.c", "while (rx->later_count > 0 && rx->later[0].from <= rx->arrived) {", "while (rx->later_count > 0 && rx->later[0].from < rx->arrived) {"),
    ("spans_lose_a_neighbour", "slp_stream.c", "\t\tto = slp_max(to, spans[last].to);\n", ""),
    ("message_given_twice_after_a_stall", "slp_record.c", "\t\t\trx->stalled = true;\n", "\t\t\trx->stalled = true;\n\t\t\tif (bytes == 100)\n\t\t\t\trx->floor += SLP_RECORD_BYTES + bytes;\n"),
    ("credit_beyond_the_buffer", "slp_stream.c", "return (uint16_t)((rx->floor + rx->capacity) / 1024);", "return (uint16_t)((rx->floor + rx->capacity) / 1024 + 4);"),
    ("no_word_after_a_stall", "slp_session.c", "\t\ts->seen.due = 0;\n", "\t\ts->seen.due = SLP_NEVER;\n"),
    ("segments_never_end", "slp_content.c", "segment->left = (uint16_t)(segment->left - entry->bytes);", "segment->left = (uint16_t)(segment->left - (entry->bytes == 77 ? 0 : entry->bytes));"),
    ("wrapped_record_cut", "slp_record.c", "if (place + bytes > rx->capacity) {", "if (place + bytes > rx->capacity + 8) {"),
    ("unit_placed_again", "slp_data.c", "bool fresh = unit >= sink->floor && !test_bit(sink->bits, unit);", "bool fresh = unit >= sink->floor;"),
    ("unit_below_the_floor_placed", "slp_data.c", "bool fresh = unit >= sink->floor && !test_bit(sink->bits, unit);", "bool fresh = !test_bit(sink->bits, unit);"),
    ("run_of_units_misplaced", "slp_data.c", "at - run - (fresh ? 0 : step), run);", "at - run, run);"),
    ("base_of_a_push_ignored", "slp_data.c", "sink->base + from * slp_unit_bytes(s), frame,", "from * slp_unit_bytes(s), frame,"),
    ("base_of_a_push_ignored_in_order", "slp_data.c", "sink->base + unit * slp_unit_bytes(s), frame,", "unit * slp_unit_bytes(s), frame,"),
    ("units_beyond_not_counted", "slp_data.c", "\t\t\t++sink->beyond;\n", "\t\t\tsink->beyond = 0;\n"),
    ("out_of_order_taken_for_in_order", "slp_data.c", "if (unit == sink->floor && sink->beyond == 0) {", "if (sink->beyond == 0) {"),
    ("longer_run_said_before", "slp_loss.c", "base->ack_run == s->acked_run &&", "base->ack_run >= s->acked_run &&"),
    ("generation_of_a_pull_ignored", "slp_data.c", "if (!sink->used || sink->generation != generation) {", "if (!sink->used) {"),
    ("early_push_data_acknowledged", "slp_data.c", "\t\t\treturn SLP_DROP_TRANSFER;\n", "\t\t\treturn SLP_TAKEN;\n"),
    ("window_of_units_not_kept", "slp_data.c", "end = slp_min(end, source->limit);", "end = source->limit;"),
    ("window_of_units_not_checked_and_not_kept", "slp_data.c", ">= sink->floor + SLP_TRANSFER_UNITS)\n\t\treturn SLP_DROP_RANGE;", ">= sink->floor + SLP_TRANSFER_UNITS)\n\t\treturn SLP_TAKEN;"),
    ("source_ends_a_byte_early", "slp_content.c", "source->acked == source->total)", "source->acked + SLP_UNIT_BYTES >= source->total)"),
    ("offset_of_a_pull_ignored", "slp_peer.c", "\tsource->base = offset - handle->base;\n\tsource->total = length;\n\tsource->limit = limit;", "\tsource->total = length;\n\tsource->limit = limit;"),
    ("grant_beyond_the_length", "slp_request.c", "limit = slp_min(pull->granted + step, pull->total);", "limit = pull->granted + step;"),
    ("budget_leaks_on_cancel", "slp_transfer.c", "uint64_t back = pull->granted - pull->placed;", "uint64_t back = status == SLP_CANCELLED ? 0 : pull->granted - pull->placed;"),
    ("hungry_never_fed", "slp_owed.c", "\tslp_transfers_work(next);\n", ""),
    ("done_forgotten_when_full", "slp_request.c", "\t++s->owed_count;\n", ""),
    ("cancel_not_told", "slp_transfer.c", "\t\t\tif (push->told)\n\t\t\t\tslp_owe_done(s, slp_transfer_number(i, push->generation, true), SLP_CANCELLED);\n", ""),
    ("closed_handle_still_read", "slp_peer.c", "\t\t\tslp_stop_serving(s, i);\n\t\t}\n\t\tif (s->coming[i].used && s->coming[i].handle == number) {", "\t\t}\n\t\tif (s->coming[i].used && s->coming[i].handle == number) {"),
    ("closed_handle_still_written", "slp_peer.c", "\t\t\ts->coming[i].used = false;\n\t\t}\n\t}\n\tslp_settle(s);\n}", "\t\t}\n\t}\n\tslp_settle(s);\n}"),
    ("handle_of_an_older_generation", "slp_handle.c", "return handle->open && handle->generation == number >> 16 ? handle : 0;", "return handle->open ? handle : 0;"),
    ("pulls_not_ended_with_the_session", "slp_transfer.c", "\t\tif (s->pulls[i].used)\n\t\t\tslp_end_pull(s, &s->pulls[i], why, true);\n", ""),
    ("lost_content_given_up", "slp_loss.c", "land(s, entry, entry->kind == SLP_SENT_PING ? SLP_SENT_DONE : SLP_SENT_LOST);", "land(s, entry, entry->kind != SLP_SENT_EAGER || entry->bytes == 60 ? SLP_SENT_DONE : SLP_SENT_LOST);"),
    ("patience_never_learned", "slp_loss.c", "\t*place = entry->number;\n", "\t*place = 0;\n\t--s->given_up_live;\n"),
    ("in_flight_leaks", "slp_loss.c", "\t\t--s->flying;\n\t\ts->in_flight -= slp_wire_bytes(s, entry);\n", "\t\t--s->flying;\n\t\ts->in_flight -= state == SLP_SENT_LOST ? 0 : slp_wire_bytes(s, entry);\n"),
    ("no_probe", "slp_loss.c", "\ts->probe_due = slp_answer_missing(s) ? now + probe_wait(s) : SLP_NEVER;\n", "\t(void)now;\n\t(void)probe_wait;\n"),
    ("acks_of_the_unsent_believed", "slp_loss.c", "if (largest == 0 || largest >= s->next_number || base->ack_run >= largest)", "if (largest == 0 || base->ack_run >= largest)"),
    ("blocked_by_credit_never_asks", "slp_loss.c", "return s->flying > 0 || (tx->sent == tx->limit && tx->written > tx->sent);", "return s->flying > 0;"),
    ("no_place_spared_for_pieces", "slp_session.h", "< SLP_SENT_FRAMES - SLP_SPARE_FRAMES;", "< SLP_SENT_FRAMES;"),
    ("no_place_spared_for_pings", "slp_session.h", "#define SLP_SPARE_PINGS 1u", "#define SLP_SPARE_PINGS 0u"),
    ("large_pieces_in_the_spare_places", "slp_tx.c", "slp_sent_room(s) ? s->frame_limit : slp_small_frame(s)", "s->frame_limit"),
    ("small_pieces_wait_for_large_ones", "slp_tx.c", "\tif (!slp_sent_place(s, SLP_SPARE_PINGS)) {\n", "\tif (!slp_sent_place(s, SLP_SPARE_PINGS)) {\n\t\treturn 0;\n"),
    ("old_pings_keep_their_places", "slp_loss.c", "(left > 0 || full); ++at", "left > 0; ++at"),
    ("places_of_the_settled_lost", "slp_loss.c", "\t\tclose_up(s);\n", "\t\t;\n"),
    ("closing_up_forgets_the_youngest", "slp_loss.c", "\ts->sent_next = to;\n", "\ts->sent_next = to - (to - s->sent_first > 500);\n"),
    ("part_of_lost_content_forgotten", "slp_tx.c", "\t\tlost->offset += part.bytes;\n", "\t\tlost->offset += part.bytes;\n\t\tlost->bytes = part.bytes;\n"),
    ("message_order_of_segments", "slp_tx.c", "\ttx->sent += entry.bytes;\n\teager_frame", "\ttx->sent += entry.bytes - (entry.bytes == 50);\n\teager_frame"),
    ("turns_not_passed_on", "slp_tx.c", "s->round_robin = (turn + 1) % (2 * SLP_TRANSFERS);", "s->round_robin = turn;"),
    ("turns_of_pushes_are_those_of_pulls", "slp_content.c", "SLP_TRANSFERS + (index & ~SLP_TRANSFER_PUSH)", "(index & ~SLP_TRANSFER_PUSH)"),
    ("frame_one_byte_too_long", "slp_tx.c", "- SLP_EAGER_BYTES - slp_seal_bytes(s);", "- SLP_EAGER_BYTES - slp_seal_bytes(s) + 1;"),
    ("silence_ends_nothing", "slp_session.c", "s->why : SLP_SILENT);\n\t\tslp_settle(s);\n", "s->why : SLP_SILENT);\n"),
    ("hellos_too_seldom_for_a_flood", "slp_session.c", "slp_min(s->hellos, 2)", "slp_min(s->hellos, 4)"),
    ("a_retry_is_no_word_of_the_peer", "slp_session.c", "\t\ts->last_heard = now;\n\t\treturn SLP_TAKEN;\n", "\t\treturn SLP_TAKEN;\n"),
    ("a_failure_in_a_frame_ends_nothing", "slp_session.c", "\tif (s->ending)\n\t\tslp_settle(s);\n", ""),
    ("a_failure_while_closing_a_handle_ends_nothing", "slp_peer.c", "\tslp_settle(s);\n", ""),
    ("control_records_wait_for_ever", "slp_session.c", "\t\tslp_transfers_work(s); /* there may be records that found no room */\n", ""),
    ("a_push_that_failed_counts_as_written", "slp_transfer.c", "if (s->config.ops->written && s->state == SLP_UP) {", "if (s->config.ops->written) {"),
    ("session_field_not_looked_at", "slp_session.c", "return base->session == s->tag ? on_numbered(s, frame, base, now) : SLP_DROP_SESSION;", "return on_numbered(s, frame, base, now);"),
    ("nack_of_another_session_believed", "slp_session.c", "meant != s->peer.connection || base->session != s->tag :", "false :"),
    ("lost_answer_never_repeated", "slp_session.c", "\t\ts->answer_due = true; /* our answer was lost */\n", ""),
    ("own_sleep_counts_as_silence", "slp_session.c", "\ts->last_heard = slp_min(now, s->last_heard + (now - due));\n\ts->waiting_since = slp_min(now, s->waiting_since + (now - due));\n", ""),
    ("cookie_never_fits", "slp_listen.c", "for (age = 0; age < 2 && age <= period; ++age)", "for (age = 1; age < 2 && age <= period; ++age)"),
    ("nonce_repeats", "slp_seal.c", "slp_store64(out->nonce + 4, number);", "slp_store64(out->nonce + 4, number & 0xff);"),
    ("number_seals_again", "slp_seal.c", "|| tx->number <= s->keys.last_sealed ||", "||"),
    ("tag_not_looked_at", "slp_seal.c", "\tif (!s->config.cipher->open(s->config.cipher_user, &how, frame, SLP_BASE_BYTES, bytes))\n\t\treturn SLP_DROP_FORGED;\n", "\ts->config.cipher->open(s->config.cipher_user, &how, frame, SLP_BASE_BYTES, bytes);\n"),
    ("header_not_authenticated", "slp_seal.c", "\tslp_copy_base(out->header, frame);\n}", "\t(void)frame;\n\tmemset(out->header, 0, SLP_BASE_BYTES);\n}"),
    ("ce_is_authenticated", "slp_seal.c", "\tslp_copy_base(out->header, frame);\n}", "\tslp_copy_base(out->header, frame);\n\tout->header[1] = frame[1];\n}"),
    ("payload_not_opened_whole", "slp_seal.c", "slp_extension_bytes(base->type) + base->payload_bytes, slot;", "slp_extension_bytes(base->type) + (base->payload_bytes & ~7u), slot;"),
    ("opened_numbers_forgotten", "slp_seal.c", "\tslp_window_add(&s->keys.opened, number);\n", ""),
    ("dropped_frames_open_again", "slp_session.c", "known = s->sealed ? &s->keys.opened : &s->seen.here;", "known = &s->seen.here;"),
    ("numbers_added_before_they_are_proven", "slp_seal.c", "\tdescribe(s, false, slot, number, frame->data, &how);\n", "\tdescribe(s, false, slot, number, frame->data, &how);\n\tslp_window_add(&s->keys.opened, number);\n"),
    ("never_a_new_key", "slp_seal.c", "keys->bits = (uint8_t)slp_min(s->ours.epoch_bits, s->peer.epoch_bits);", "keys->bits = 63;"),
    ("keys_of_one_session_in_the_next", "slp_seal.c", "slot, salt, info, sizeof(info)))", "slot, (const uint8_t[32]){0}, info, 20))"),
    ("epoch_not_in_the_key", "slp_seal.c", "slp_store64(info + 12, epoch);", ""),
    ("key_of_the_epoch_before_thrown_away", "slp_seal.c", "\t\tif (keys->epoch[i] == epoch)\n\t\t\treturn i;\n", "\t\tif (keys->epoch[i] == epoch && epoch >= keys->epoch[keys->order[0]])\n\t\t\treturn i;\n\tif (keys->epoch[keys->order[0]] != SLP_NEVER && epoch < keys->epoch[keys->order[0]])\n\t\treturn SLP_KEY_SLOTS;\n"),
    ("keys_only_one_epoch_on", "slp_seal.c", "\treturn derive(s, false, spare, epoch) ? spare : SLP_KEY_SLOTS;", "\tif (keys->epoch[keys->order[0]] != SLP_NEVER && epoch > keys->epoch[keys->order[0]] + 1)\n\t\treturn SLP_KEY_SLOTS;\n\treturn derive(s, false, spare, epoch) ? spare : SLP_KEY_SLOTS;"),
    ("phase_never_said", "slp_seal.c", "return number >> s->keys.bits & 1 ? SLP_FLAG_PHASE : 0;", "return number >> s->keys.bits & 1 ? 0 : 0;"),
    ("clear_frames_in_a_sealed_session", "slp_session.c", "\tif (!(base->flags & SLP_FLAG_SEALED) == s->sealed)\n\t\treturn SLP_DROP_UNSEALED;\n", "\tif (base->flags & SLP_FLAG_SEALED && !s->sealed)\n\t\treturn SLP_DROP_UNSEALED;\n\tif (!(base->flags & SLP_FLAG_SEALED) && s->sealed) {\n\t\tif (base->type == SLP_BYE)\n\t\t\tslp_fail(s, SLP_CLOSED);\n\t\treturn SLP_DROP_UNSEALED;\n\t}\n"),
    ("nack_in_a_sealed_session_believed", "slp_session.c", "\tif (s->config.cipher) {\n\t\tif (s->state == SLP_CONNECTING)\n\t\t\ts->why = reason", "\tif (s->config.cipher && s->state == SLP_CONNECTING) {\n\t\tif (s->state == SLP_CONNECTING)\n\t\t\ts->why = reason"),
    ("refusal_ends_a_greeting_with_a_secret", "slp_session.c", "\tif (s->config.cipher) {\n\t\tif (s->state == SLP_CONNECTING)\n\t\t\ts->why = reason", "\tif (s->config.cipher && s->state == SLP_UP) {\n\t\tif (s->state == SLP_CONNECTING)\n\t\t\ts->why = reason"),
    ("half_of_the_greetings_tag", "slp_seal.c", "for (i = 0; i < SLP_TAG_BYTES; ++i)\n\t\tdiffers", "for (i = 0; i < SLP_TAG_BYTES / 2; ++i)\n\t\tdiffers"),
    ("cookie_not_in_the_greetings_tag", "slp_seal.c", "\tmemcpy(text + SLP_BASE_BYTES, frame + SLP_BASE_BYTES, SLP_HELLO_PROVEN);\n", "\tmemcpy(text + SLP_BASE_BYTES, frame + SLP_BASE_BYTES, SLP_HELLO_PROVEN);\n\tmemset(text + SLP_BASE_BYTES + 16, 0, 8);\n"),
    ("answers_believed_without_proof", "slp_session.c", "if (s->config.cipher && !slp_greeting_proven(", "if (s->config.cipher && base->type == SLP_HELLO && !slp_greeting_proven("),
    ("listener_asks_for_no_proof", "slp_listen.c", "if (seals && !slp_greeting_proven(listener->cipher, listener->cipher_user, frame))", "if (seals && !frame)"),
    ("cipher_stripped_at_the_listener", "slp_listen.c", "\tif (seals != (listener->cipher != 0))\n", "\tif (seals && !listener->cipher)\n"),
    ("cipher_stripped_at_the_accept", "slp_session.c", "\tif (seals != (s->config.cipher != 0))\n", "\tif (seals && !s->config.cipher)\n"),
    ("confirmed_by_anything", "slp_session.c", "\ts->passive = true;\n", "\ts->passive = s->confirmed = true;\n"),
    ("no_frame_to_confirm", "slp_session.c", "\ts->ping_due = s->sealed;", "\ts->ping_due = false;"),
    ("room_for_the_tag_forgotten", "slp_tx.c", "- SLP_EAGER_BYTES - slp_seal_bytes(s);", "- SLP_EAGER_BYTES;"),
    ("lent_work_given_back_under_frames", "slp_work.c", "s->sent_first != s->sent_next || ", ""),
    ("lent_work_given_back_under_transfers", "slp_work.c", "s->sinks > 0 || ", ""),
    ("lent_work_given_back_under_streams", "slp_work.c", " || streams_hold(s)", ""),
    ("lent_work_given_back_within_a_call", "slp_work.c", "s->depth > 0 || ", ""),
    ("lent_work_kept_by_the_dead", "slp_work.c", "(s->state != SLP_DOWN && under_way(s))", "under_way(s)"),
    ("lent_work_kept_after_a_timer", "slp_session.c", "\t\ts->ping_due = true;\n\tslp_rest(s);\n", "\t\ts->ping_due = true;\n"),
    ("sinks_not_counted_off", "slp_session.h", "\ts->sinks -= sink->used;\n", ""),
]


def build(folder, core):
    objects = []
    for source in sorted(core.glob("*.c")):
        objects.append(folder / (source.stem + ".o"))
        subprocess.run(["gcc", "-std=c11", "-O1", "-g", "-w", *SANITIZE, "-c", source, "-o", objects[-1]], check=True)
    return objects


def build_tests(folder):
    """Programs as lists of objects, without the core."""
    links = folder / "include" / "sluice"
    links.mkdir(parents=True)
    (links / "base").symlink_to(ROOT / "transport" / "base")
    (folder / "main.cc").write_text("#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n", encoding="utf-8")
    objects = {}
    (links / "l2").symlink_to(ROOT / "transport" / "l2")
    unit_tests = ["wire_test", "numbers_test", "session_test", "stream_test", "transfer_test", "seal_test", "incast_test", "shrink_test"]
    world = ["simulate", "world", "end", "plan", "attacker", "toy_cipher", "judge"]
    incast = ["incast", "go_back_n"]
    real_cipher = [ROOT / "transport" / "l2" / "cipher.cc", ROOT / "transport" / "base" / "status.cc", ROOT / "transport" / "base" / "result.cc"]
    for source in [ROOT / "tests" / "slp" / (name + ".cc") for name in [*unit_tests, *world, *incast]] + real_cipher + [folder / "main.cc"]:
        objects[source.stem] = folder / (source.stem + ".o")
        subprocess.run(["g++", "-std=c++20", "-O1", "-g", "-w", *SANITIZE, "-I", ROOT, "-I", folder / "include", "-c",
                        source, "-o", objects[source.stem]], check=True)
    of = lambda *chosen: [objects[name] for name in chosen]
    programs = {name: of(name, "judge", "cipher", "status", "result", "main") for name in unit_tests}
    programs["incast_test"] += of(*incast)
    programs["simulate"] = of(*world)
    return programs


def complaint(run):
    lines = run.stdout.splitlines() + run.stderr.splitlines()
    for sign in ("seed ", "FAILED", "ERROR", "runtime error"):
        for number, line in enumerate(lines):
            if sign in line:
                return " ".join(part.strip() for part in lines[number:number + 2])[:110]
    return (lines or ["?"])[-1][:110]


def try_mutant(mutant, programs, schedules):
    name, file, old, new = mutant
    with tempfile.TemporaryDirectory(prefix="slp-mutant.") as place:
        folder = pathlib.Path(place)
        core = folder / "slp"
        shutil.copytree(CORE, core)
        text = (core / file).read_text(encoding="utf-8")
        if text.count(old) != 1:
            return name, None, f"its place is {text.count(old)} times in {file}"
        (core / file).write_text(text.replace(old, new), encoding="utf-8")
        try:
            objects = build(folder, core)
        except subprocess.CalledProcessError:
            return name, None, "does not build"
        for program, others in programs.items():
            subprocess.run(["g++", *SANITIZE, *objects, *others, "-o", folder / program], check=True)
            arguments = ["--schedules", str(schedules)] if program == "simulate" else ["--abort"]
            try:
                run = subprocess.run([folder / program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", timeout=600)
            except subprocess.TimeoutExpired:
                return name, True, f"{program} hangs"
            if run.returncode != 0:
                return name, True, f"{program}: {complaint(run)}"
        return name, False, complaint(run)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=6000)
    parser.add_argument("--only", default="")
    parser.add_argument("--after", default="")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.only in m[0]]
    if options.after:
        chosen = chosen[[m[0] for m in chosen].index(options.after) + 1:]
    survivors = broken = 0
    with tempfile.TemporaryDirectory(prefix="slp-tests.") as place:
        programs = build_tests(pathlib.Path(place))
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for name, caught, said in pool.map(lambda m: try_mutant(m, programs, options.schedules), chosen):
                verdict = "caught" if caught else "SURVIVED" if caught is False else "BROKEN"
                survivors += caught is False
                broken += caught is None
                print(f"{verdict:8}  {name}: {said}", flush=True)
    print(f"{len(chosen) - survivors - broken} of {len(chosen)} caught, {survivors} survived, {broken} could not be planted")
    return 1 if survivors or broken else 0


if __name__ == "__main__":
    sys.exit(main())
