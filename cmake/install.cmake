# The header, the library, the command, and what find_package(kdtree) and pkg-config need to find them.
include(CMakePackageConfigHelpers)

install(FILES include/kdtree/kdtree.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kdtree)
install(TARGETS kdtree_shared EXPORT kdtree)
install(TARGETS kdtree_cli)
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")

# The header needs nothing but C, so the exported target is the whole package configuration.
set(KDTREE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/kdtree)
install(EXPORT kdtree FILE kdtreeConfig.cmake NAMESPACE kdtree:: DESTINATION ${KDTREE_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kdtreeConfigVersion.cmake
                                 COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kdtreeConfigVersion.cmake DESTINATION ${KDTREE_PACKAGE_DIR})

# The prefix is told relative to the .pc file, so that an installed tree can be moved.
file(RELATIVE_PATH KDTREE_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/kdtree.pc.in kdtree.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kdtree.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
