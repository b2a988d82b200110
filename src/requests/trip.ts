// All hops of one sending, until the change that ends its attempt is known. It can be awaited, and is not a promise: the answer calls it, and it calls the attempt.
// With promises from the answer to the end, a plain request took three of them and three turns of the queue of microtasks.
import type { EndsWith } from "../job/contract.ts";
import type { JobKey } from "../job/limits.ts";
import type { Dispatcher } from "./connections.ts";
import { type Hop, nextHop } from "./redirects.ts";
import type { Ended, OneRequest } from "./request-end.ts";
import type { Answer, NoAnswer, SendOptions } from "./wire.ts";

/** How it is sent. */
export interface TripPlan {
  /** Null: something stands in for the network. */
  readonly dispatcher: Dispatcher | null;
  readonly options: SendOptions;
  readonly startMono: number;
  readonly sentAt: number;
  /** It is durable that it may have been sent. */
  readonly marked: boolean;
  readonly key: JobKey | null;
}

export interface TripOwner {
  /** Sends the current hop, whose end calls `ended`. */
  send(trip: Trip): void;
  settle(trip: Trip, ended: Ended): EndsWith | Promise<EndsWith>;
  /** What becomes of a request that could not be sent or settled. */
  caught(trip: Trip, thrown: unknown): Promise<EndsWith>;
  mono(): number;
}

export class Trip {
  readonly one: OneRequest;
  readonly plan: TripPlan;
  hop: Hop;
  readonly #owner: TripOwner;
  #resolve: ((end: EndsWith) => void) | undefined;
  #reject: ((thrown: unknown) => void) | undefined;
  #end: EndsWith | undefined;
  #failure: { readonly thrown: unknown } | undefined;

  constructor(owner: TripOwner, one: OneRequest, plan: TripPlan, hop: Hop) {
    this.#owner = owner;
    this.one = one;
    this.plan = plan;
    this.hop = hop;
    this.#send();
  }

  /** Called once, by the attempt or by `await`. */
  then(resolve: (end: EndsWith) => void, reject: (thrown: unknown) => void): void {
    if (this.#end) resolve(this.#end);
    else if (this.#failure) reject(this.#failure.thrown);
    this.#resolve = resolve;
    this.#reject = reject;
  }

  /** How the current hop ended. Redirects are followed as far as the kind allows. Never throws: undici calls it. */
  ended(end: Answer | NoAnswer): void {
    const { contract, attempt } = this.one;
    attempt.underWay = null;
    try {
      const next = end.is === "answer" ? nextHop(this.hop, end, contract.request, contract.name) : null;
      if (next !== null && "request" in next) {
        this.hop = next;
        return this.#send();
      }
      const settling = this.#owner.settle(this, this.#ended(next ?? end));
      if (settling instanceof Promise)
        settling.then(
          (it) => this.#done(it),
          (thrown: unknown) => this.#caught(thrown),
        );
      else this.#done(settling);
    } catch (thrown) {
      this.#caught(thrown);
    }
  }

  #send(): void {
    try {
      this.#owner.send(this);
    } catch (thrown) {
      this.#caught(thrown);
    }
  }

  #ended(end: Answer | NoAnswer): Ended {
    const { startMono, sentAt } = this.plan;
    const { request, redirects } = this.hop;
    return { end, redirects, request, sentAt, durationMs: Math.round(this.#owner.mono() - startMono) };
  }

  #caught(thrown: unknown): void {
    this.#owner.caught(this, thrown).then(
      (end) => this.#done(end),
      (still: unknown) => this.#failed(still),
    );
  }

  #done(end: EndsWith): void {
    this.#end = end;
    this.#resolve?.(end);
  }

  #failed(thrown: unknown): void {
    this.#failure = { thrown };
    this.#reject?.(thrown);
  }
}
