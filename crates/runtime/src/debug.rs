//! `Debug` in a few words.

/// Implements `Debug` for a type whose fields say little, or must not be shown: by its name alone,
/// or by words with some of it.
#[macro_export]
macro_rules! debug_as {
    ($type:ident) => {
        $crate::debug_as!($type, |_it| "{}", stringify!($type));
    };
    ($type:ident, |$it:ident| $($words:tt)+) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $it = self;
                write!(f, $($words)+)
            }
        }
    };
}
