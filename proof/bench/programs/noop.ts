// The jobs of the bench: one that does nothing, and one of a kind that the workers do not know. Both sides store the same text.
import { job } from "../../../src/index.ts";

export interface NoopInput {
  readonly n: number;
}

export const noop = job<{ n: number }>("noop");
export const unknown = job<{ n: number }>("unknown");

export function* inputs(count: number): Generator<{ n: number }> {
  for (let n = 0; n < count; n++) yield { n };
}

/** What an input is in the store, for the floor. */
export function payload(n: number): string {
  return `{"n":${n}}`;
}
