// Which messages a process handles next, when some of them end processes: with a broker that counts a delivery for everything that was in hand.
import assert from "node:assert/strict";
import { test } from "node:test";
import { type HandState, nextTurn, type NextTurn, putOffMs } from "../../src/brokers/rabbitmq/suspects.ts";
import { MAX_IN_COMPANY as LIMIT } from "../../src/collections/messages.ts";

interface Message {
  readonly isPoison: boolean;
  times: number;
}

/** Processes, one after the other, that take the queue until it is empty. Messages come in pieces, as a socket brings them. */
function livesOf(
  queue: Message[],
  prefetch: number,
  limit: number,
  random: () => number,
): { readonly handled: number; readonly left: readonly Message[]; readonly deaths: number } {
  let [handled, deaths] = [0, 0];
  const left: Message[] = [];
  while (queue.length > 0) {
    const hand: Message[] = [];
    let [areSuspectsNext, isDead] = [false, false];
    while (!isDead && (queue.length > 0 || hand.length > 0)) {
      const arrived = queue.splice(0, Math.min(prefetch - hand.length, 1 + Math.floor(random() * prefetch)));
      hand.push(...arrived);
      const quietMs = arrived.some(({ times }) => times > 0) ? 0 : Infinity;
      const state: HandState = { prefetch, quietMs, isBusy: false, areSuspectsNext };
      const next = nextTurn(hand, state) as NextTurn<Message> | { taken: null };
      if (next.taken === null) continue;
      areSuspectsNext = !next.isIsolated && hand.length > next.taken.length;
      isDead = next.taken.some(({ isPoison, times }) => isPoison && times < limit);
      if (isDead) break;
      for (const message of next.taken) {
        hand.splice(hand.indexOf(message), 1);
        if (message.times >= limit) left.push(message);
        else handled++;
      }
    }
    if (!isDead) break;
    deaths++;
    for (const message of hand) message.times++;
    queue.unshift(...hand);
  }
  return { handled, left, deaths };
}

function seeded(seed: number): () => number {
  let state = seed;
  return () => (state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0) / 2 ** 32;
}

function withPoison(length: number, at: (n: number) => boolean): Message[] {
  return Array.from({ length }, (_, n) => ({ isPoison: at(n), times: 0 }));
}

test("a message that ends processes leaves the queue after its limit, wherever it is, and takes no more with it than was in hand", () => {
  for (const prefetch of [1, 2, 16, 256])
    for (let seed = 1; seed <= 50; seed++) {
      const poison = seed % 2 === 0 ? 0 : Math.floor(seeded(seed)() * 300);
      const queue = withPoison(300, (n) => n === poison);
      const { handled, left, deaths } = livesOf(queue, prefetch, LIMIT, seeded(seed * 7919 + prefetch));
      const of = `prefetch ${prefetch}, seed ${seed}`;
      assert.equal(deaths, LIMIT, of);
      assert.equal(handled + left.length, 300, of);
      assert.ok(
        left.some(({ isPoison }) => isPoison),
        of,
      );
      assert.ok(left.length <= prefetch, `${of}: ${left.length} left with it`);
    }
});

test("alone with a higher limit, none of its neighbours leaves with it", () => {
  for (const prefetch of [1, 2, 16, 256])
    for (let seed = 1; seed <= 50; seed++) {
      const queue = withPoison(300, (n) => n === seed * 5);
      const { handled, left, deaths } = livesOf(queue, prefetch, 20, seeded(seed * 7919 + prefetch));
      assert.deepEqual([handled, left.length, deaths], [299, 1, 20], `prefetch ${prefetch}, seed ${seed}`);
    }
});

test("however many end processes, the number of deaths is bounded by theirs, and nothing stays in the queue", () => {
  for (let seed = 1; seed <= 50; seed++) {
    const random = seeded(seed);
    const queue = withPoison(200, () => random() < 0.05);
    const poison = queue.filter(({ isPoison }) => isPoison).length;
    const { handled, left, deaths } = livesOf(queue, 16, LIMIT, random);
    assert.equal(handled + left.length, 200);
    assert.equal(left.filter(({ isPoison }) => isPoison).length, poison);
    assert.ok(deaths <= poison * LIMIT, `${deaths} deaths by ${poison}`);
  }
});

test("fresh messages do not wait for one that is put off, nor does it wait for as long as they come", () => {
  const [fresh, poison] = [{ times: 0 }, { times: 12 }];
  const ask = (waiting: readonly { times: number }[], quietMs: number, areSuspectsNext: boolean, isBusy = false) =>
    nextTurn(waiting, { prefetch: 16, quietMs, areSuspectsNext, isBusy });
  for (const next of [false, true])
    assert.deepEqual(ask([poison, fresh], 0, next, true), { taken: [fresh], isIsolated: false });
  assert.deepEqual(ask([poison, fresh], 1_000, false), { taken: [fresh], isIsolated: false }, "a turn of theirs first");
  assert.deepEqual(ask([poison, fresh], 1_000, true), { taken: [poison], isIsolated: true });
  assert.deepEqual(ask([poison, fresh], 1_000, true, true), { taken: null, againInMs: null }, "not next to others");
  assert.deepEqual(ask([poison], 100, false), { taken: null, againInMs: putOffMs(12) - 100 });
});

test("after one death messages are handled at once", () => {
  assert.equal(putOffMs(1), 0);
});
