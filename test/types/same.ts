// Whether two types are the very same, asked of the compiler. Nothing here runs.

/** True only if `A` and `B` are the same type; unlike assignability it tells `never`, `any` and `unknown` apart. */
export type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;

/** Compiles only for `true`. */
export const isTrue = <T extends true>(): T | undefined => undefined;
