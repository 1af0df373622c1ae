"""How partners take turns on cases: who goes first changes from round to round."""
import sys
import time

import cases as case_list
from partners import PartnerFailed

PAUSE = 0.01  # between turns: threads that still spin go to sleep


def say(text):
    print(text, flush=True)


def peak_of(partner):
    """FLOP/s of multiply-adds on registers, on all its threads at the same time."""
    return partner.ask("peak")["flops_per_second"]


def take_turn(partners, entry, who, problems, gone):
    """One turn. A partner that cannot run the case, or whose result is wrong, has none any more."""
    partner = partners["headwise" if who in case_list.INSIDE else who]
    time.sleep(PAUSE)
    try:
        reply = partner.ask(entry["requests"][who])
        if partner.can_check and who not in entry["seconds"]:
            if not partner.ask("check " + entry["requests"][who])["right"]:
                raise PartnerFailed("the result is wrong")
    except PartnerFailed as failure:
        problems.append(f"{who}, {entry['requests'][who]}: {failure}")
        del entry["requests"][who]
        entry["seconds"].pop(who, None)
        if partner.process.poll() is not None:
            if who in case_list.INSIDE:
                raise
            gone.add(who)
        return
    entry["seconds"].setdefault(who, []).append(reply["seconds"])
    if who.startswith("headwise"):
        for figure in ("flops", "bytes", "tokens", "peak_bytes"):
            entry[figure] = reply[figure]


def show_progress(number, rounds, done, entries):
    """On a terminal: one line that is written over."""
    if sys.stdout.isatty():
        text = f"round {number + 1} of {rounds}, {done + 1} of {len(entries)}: "
        request = next(iter(entries[done]["requests"].values()), "")
        print(f"\r{text + request[:60]:<98}\r", end="", flush=True)


def run_rounds(partners, entries, rounds, problems, before_and_after, keep=lambda done: None):
    """`before_and_after` is called at the begin and the end of each round, then `keep` with how many
    are done: who is stopped loses no more than a round."""
    gone = set()  # whose process ended: they are not asked again
    for number in range(rounds):
        started = time.time()
        before_and_after()
        for done, entry in enumerate(entries):
            show_progress(number, rounds, done, entries)
            # Who goes first changes: what the one does to clock and caches, the other does too.
            order = list(entry["requests"])
            for who in order if number % 2 == 0 else order[::-1]:
                if who not in gone:
                    take_turn(partners, entry, who, problems, gone)
        before_and_after()
        say(f"round {number + 1} of {rounds}: {time.time() - started:.0f} s")
        keep(number + 1)
