package demo;

import java.util.ArrayList;

/** A class that extends a collection of the JDK: before 2.0.11 JBoss Marshalling leaves its superclass undescribed. */
public class Names extends ArrayList<String> {

    private static final long serialVersionUID = 11;
}
