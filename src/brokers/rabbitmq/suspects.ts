// Which of the messages in hand are handled next. The broker counts a delivery for everything that a process held when it died, whether it was being
// handled or only waited, so a count does not say which message ended the process. Three rules find out, and handle the neighbours first: what was never
// in hand of a dead process goes first; of the others the least often delivered go first, in groups that halve with each death; and a group begins at
// another place of its equals after each death, because a broker brings them in the same order again. Pure.

/** A message in hand. */
export interface Counted {
  /** How often it was delivered before. */
  readonly times: number;
}

/** What is handled next: fresh ones next to others, or a group of suspects while nothing else of the queue is. */
export interface NextTurn<M> {
  readonly taken: readonly M[];
  readonly isIsolated: boolean;
}

const PUT_OFF_MS = 10;
const MAX_PUT_OFF_MS = 250;

/**
 * How long a suspect is put off after the latest suspect has come. After one death not at all: most deaths have another cause. Later on long enough for
 * the messages behind it to come and to be stored, because with the next death they would be counted, too.
 */
export function putOffMs(times: number): number {
  return times < 2 ? 0 : Math.min(MAX_PUT_OFF_MS, PUT_OFF_MS * 2 ** (times - 2));
}

/** How many of these may be handled at once: half of what a process takes after one death, a quarter after two, until each is alone. */
function together(prefetch: number, times: number): number {
  return Math.max(1, Math.floor(prefetch / 2 ** times));
}

export interface HandState {
  readonly prefetch: number;
  /** Since the latest suspect has come. */
  readonly quietMs: number;
  /** Whether something is being handled. */
  readonly isBusy: boolean;
  /** Whether the latest turn was one of fresh messages while suspects waited: now it is theirs, or they would wait for as long as fresh ones come. */
  readonly areSuspectsNext: boolean;
}

/** The next turn. `taken` is null: nothing yet; then `againInMs` says when to ask again if nothing else happens. */
export function nextTurn<M extends Counted>(
  waiting: readonly M[],
  { prefetch, quietMs, isBusy, areSuspectsNext }: HandState,
): NextTurn<M> | { readonly taken: null; readonly againInMs: number | null } {
  const fresh = waiting.filter(({ times }) => times === 0);
  const suspects = waiting.filter(({ times }) => times > 0);
  const least = Math.min(...suspects.map(({ times }) => times));
  const leftMs = suspects.length === 0 ? Infinity : putOffMs(least) - quietMs;
  if (fresh.length > 0 && (leftMs > 0 || !areSuspectsNext)) return { taken: fresh, isIsolated: false };
  if (leftMs > 0) return { taken: null, againInMs: suspects.length === 0 ? null : leftMs };
  if (isBusy) return { taken: null, againInMs: null };
  const equals = suspects.filter(({ times }) => times === least);
  return { taken: inTurn(equals, together(prefetch, least), least), isIsolated: true };
}

/** So many of them, from the `turn`-th on. */
function inTurn<M>(equals: readonly M[], count: number, turn: number): M[] {
  const from = turn % equals.length;
  return [...equals.slice(from), ...equals.slice(0, from)].slice(0, count);
}
