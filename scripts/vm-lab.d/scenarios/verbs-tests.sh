# shows: the tests of netstack's verbs and of channel verbs between two devices: errors, flushes, re-establishment
# options: --nic rxe --timeout 300
# needs: verbs_rxe shouter_lib

two_rxe
verbs_rxe || fail "verbs_rxe ended with $?"
chmod 600 /dev/infiniband/uverbs*
verbs_rxe permission || fail "verbs_rxe permission ended with $?"
chmod 666 /dev/infiniband/uverbs*
SHOUTER_TEST_RXE_LINK=va verbs_rxe lost_link || fail "verbs_rxe lost_link ended with $?"
shouter_lib channel::verbs::tests::rxe --test-threads 1 || fail "shouter_lib ended with $?"
