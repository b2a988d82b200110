// A broken promise. Thrown by the laws and the audit; it ends the history of its seed. Any other error ends it too, but proves
// nothing about the laws: a mutant that stumbles over itself has not been found by them.

export class Violation extends Error {
  override readonly name = "Violation";
}

export function demand(kept: boolean, broken: () => string): asserts kept {
  if (!kept) throw new Violation(broken());
}
